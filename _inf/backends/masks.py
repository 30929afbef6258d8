"""Which tokens a row may not have next, by `allowed_token_ids` and `bad_words`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


def rule_out(
    scores: torch.Tensor,
    allowed: Sequence[int] | None,
    bad_words: Sequence[Sequence[int]],
    generated: Sequence[int],
) -> None:
    """Set the scores of one row's tokens that may not come next to -inf, in place. bad_words: as
    token ids."""
    if allowed is not None:
        kept = scores[allowed := list(allowed)]
        scores.fill_(-math.inf)
        scores[allowed] = kept
    if ends := completing(bad_words, generated):
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
