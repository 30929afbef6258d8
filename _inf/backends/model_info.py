"""Parts of `ModelInfo` that every backend reads in the same way from the config and the model."""

from __future__ import annotations

from typing import Any

from _inf.config import Config
from _inf.types import Limits, Tokenizer


def limits_of(config: Config, vocabulary: int) -> Limits:
    """The limits of every call; a row's total is `max_model_len` or the sum of both lengths."""
    rollout = config.rollout
    return Limits(
        prompt=rollout.prompt_length,
        total=rollout.max_model_len or rollout.prompt_length + rollout.response_length,
        vocabulary=vocabulary,
        truncate=config.truncate_prompt,
    )


def eos_token_ids(generation_config: Any, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of the generation config and of the tokenizer; either may lack some of them."""
    named = getattr(generation_config, "eos_token_id", None)
    ids = named if isinstance(named, list) else [named]
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)


def with_padding(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, which pads with its EOS if it has no token for that."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
