"""Turns `bad_words` into token ids as vLLM does (main at 00388f6, `sampling_params.py`,
`update_from_tokenizer`)."""

from __future__ import annotations

from collections.abc import Sequence

from _inf.errors import ConfigError, shown
from _inf.types import ModelInfo


def bad_word_ids(words: Sequence[str], model: ModelInfo) -> list[list[int]]:
    """Return the ids of each word as it begins a text, and those of the word behind a space if they
    begin with another token and are as many. Without a tokenizer there are none."""
    if model.tokenizer is None:
        return []
    found: list[list[int]] = []
    for index, word in enumerate(words):
        plain, spaced = (
            list(model.tokenizer(before + word.lstrip(), add_special_tokens=False)["input_ids"])
            for before in ("", " ")
        )
        if not plain:
            raise ConfigError.of(
                f"bad_words[{index}]", f"{shown(word)} is no token in this model's tokenizer."
            )
        found.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(spaced)
    # A tokenizer may know more tokens than the model, which never generates them.
    vocabulary = model.limits.vocabulary
    return [ids for ids in found if max(ids) < vocabulary]
