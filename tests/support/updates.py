"""New weights for an engine, and what a loop on Transformers computes that changes its weights
between two tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, GenerationConfig

from inf import InferenceEngine
from tests.support.reference import logprobs
from tests.support.tiny import tiny_model


def twelve_layers() -> Path:
    """A model of 2 MB: several buckets. Its head is its embeddings."""
    return tiny_model(layers=12, tied=True, initializer_range=0.15)


def trained(engine: InferenceEngine, seed: int) -> Any:
    """Another model of the same shape."""
    folder = engine.config.model_path
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    return model.eval()


def breaking_off(engine: InferenceEngine, patch: pytest.MonkeyPatch) -> None:
    """The second part of an update fails to be sent."""
    upstream, sent = engine.rollout._engine.update_weights_from_tensor, list[Any]()

    async def fails_second(request: Any) -> Any:
        sent.append(request)
        if len(sent) == 2:
            raise OSError("no shared memory left")
        return await upstream(request)

    patch.setattr(engine.rollout._engine, "update_weights_from_tensor", fails_second)


@torch.no_grad()
def by_hand(
    models: Sequence[Any],
    prompt: list[int],
    ids: list[int],
    firsts: Sequence[int] = (0,),
    again: bool = False,
) -> torch.Tensor:
    """The logits of each of `ids`: with each model from the first token that is its own on.

    again: whether a model computes all keys and values again, or keeps those of the ones before.
    """
    whole, cache, rows = prompt + ids, DynamicCache(), list[torch.Tensor]()
    ends = [*firsts[1:], len(ids)]
    for model, first, end in zip(models, firsts, ends, strict=True):
        if again:
            cache = DynamicCache()
        begin = cache.get_seq_length()
        until_token = len(prompt) + end - 1  # the last token is not computed
        positions = torch.arange(begin, until_token)
        logits = model(
            torch.tensor([whole[begin:until_token]]),
            past_key_values=cache,
            position_ids=positions[None],
            cache_position=positions,
            use_cache=True,
        ).logits[0]
        rows.append(logits[len(logits) - (end - first) :].float())
    return torch.cat(rows)


def sampled_by(row: Any, prompt: list[int], model: Any) -> bool:
    """Whether one model sampled all of a row."""
    computed = logprobs(by_hand([model], prompt, row.token_ids), row.token_ids)
    return bool(row.logprobs == pytest.approx(computed, abs=1e-3))


def assert_by_hand(
    rows: Iterable[Any],
    prompts: Sequence[list[int]],
    of: Mapping[int, Any],
    *,
    again: bool = False,
    greedy: bool = True,
) -> None:
    """Each row is computed by the models of its weight versions, each from its first token on."""
    for row, prompt in zip(rows, prompts, strict=True):
        ids = row.token_ids
        versions, firsts = zip(*row.weight_versions, strict=True)
        assert firsts[0] == 0 and max(firsts) < len(ids)
        assert all([*values] == sorted(set(values)) for values in (versions, firsts))
        logits = by_hand([of[version] for version in versions], prompt, ids, firsts, again)
        assert row.logprobs == pytest.approx(logprobs(logits, ids), abs=1e-3)
        if greedy:
            chosen = logits[torch.arange(len(ids)), ids]
            assert float((logits.max(-1).values - chosen).max()) < 1e-3
