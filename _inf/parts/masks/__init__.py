"""`allowed_token_ids` and `bad_words`, as vLLM's: tokens that may not come next."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from _inf.errors import ConfigError, shown
from _inf.parts.part import Part
from _inf.request import values
from _inf.request.keyword import Keyword

if TYPE_CHECKING:
    import torch

    from _inf.types import ModelInfo, SamplingParams


def words(name: str, value: object) -> list[str]:
    found = values.strings(name, value)
    for index, word in enumerate(found):
        if not word.strip():
            raise ConfigError.of(f"{name}[{index}]", f"{shown(word)} is blank.")
    return found


@dataclasses.dataclass(frozen=True)
class Masks(Part):
    """word_ids: what `bad_words` are as token ids."""

    keywords = {
        "allowed_token_ids": Keyword(
            partial(values.token_ids, least=1),
            "The only ids that may be generated. The model's EOS only if it is among them (as "
            "vLLM).",
            list[int],
            "",
            "token_masks",
            of_tokens=True,
        ),
        "bad_words": Keyword(
            words,
            "Words that are not generated. Their last token is ruled out where it would complete "
            "one, with or without a space before the word (as vLLM).",
            list[str],
            "",
            "token_masks",
            neutral=[],
        ),
    }
    adjusts = True
    no_token = (
        "allowed_token_ids, bad_words and a grammar together rule all of them out; allow more."
    )
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = dataclasses.field(default_factory=list)
    word_ids: Sequence[Sequence[int]] = ()

    @classmethod
    def asked(cls, values: Mapping[str, object], model: ModelInfo) -> Masks | None:
        part = super().asked(values, model)
        if part is None or not part.bad_words:
            return part
        return dataclasses.replace(part, word_ids=_word_ids(part.bad_words, model))

    def contradictions(self, params: SamplingParams, model: ModelInfo) -> Iterable[tuple[str, str]]:
        """A row could not begin with any of the allowed tokens."""
        left = set(self.allowed_token_ids or ())
        ends = {*params.stop_token_ids, *model.eos_token_ids} if params.min_tokens else set()
        banned = {ids[0] for ids in self.word_ids if len(ids) == 1}
        for name, excluded in (("bad_words", banned), ("min_tokens", ends)):
            left = left - excluded
            if self.allowed_token_ids and not left:
                yield name, "it rules out each of the allowed_token_ids as the first token."


def _word_ids(words: Sequence[str], model: ModelInfo) -> list[list[int]]:
    """Return the ids of each word as it begins a text, and those of the word behind a space if they
    begin with another token and are as many, as vLLM does (main at 00388f6, `sampling_params.py`,
    `update_from_tokenizer`). Without a tokenizer there are none."""
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
                f"bad_words[{index}]", f"{shown(word)} is not a token of this model's tokenizer."
            )
        found.append(plain)
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            found.append(spaced)
    # A tokenizer may know more tokens than the model, which never generates them.
    vocabulary = model.limits.vocabulary
    return [ids for ids in found if max(ids) < vocabulary]


def rule_out(
    scores: torch.Tensor,
    allowed: Sequence[int] | None,
    words: Sequence[Sequence[int]],
    generated: Sequence[int],
) -> None:
    """Set the scores of one row's tokens that may not come next to -inf, in place."""
    if allowed is not None:
        kept = scores[allowed := list(allowed)]
        scores.fill_(-math.inf)
        scores[allowed] = kept
    if ends := completing(words, generated):
        scores[ends] = -math.inf


def completing(words: Sequence[Sequence[int]], generated: Sequence[int]) -> list[int]:
    """The tokens that would complete one of the words, as token ids, after what was generated."""
    ends = []
    for *before, end in words:
        if len(before) <= len(generated) and before == list(
            generated[len(generated) - len(before) :]
        ):
            ends.append(end)
    return ends
