"""`sampling_mask`: the tokens that top_k, top_p and min_p left, and log probs over them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from _inf.parts.part import NOTHING, Added, Field, Part, Record
from _inf.parts.top_logprobs import TopLogprobs
from _inf.request import values
from _inf.request.keyword import LATER, NOT_IN_TURNS, Keyword

if TYPE_CHECKING:
    from _inf.types import ModelInfo, Prompt, RequestOutput, SamplingParams


@dataclasses.dataclass(frozen=True)
class Kept(Record):
    """Per generated token, the tokens that the filters left, with their log probs."""

    kept: list[dict[int, float]]


@dataclasses.dataclass(frozen=True)
class SamplingMask(Part):
    keywords = {
        "sampling_mask": Keyword(
            values.flag,
            "Also return the tokens that top_k, top_p and min_p left, and log probs over them. "
            "Default False (docs/training.md).",
            feature="sampling_mask",
            typed="bool",
            per_prompt=False,
            neutral=False,
            refused={**NOT_IN_TURNS, **LATER},
        )
    }
    row_fields = {
        "sampling_mask": Field(
            "list[list[int]]",
            "only with `sampling_mask=True`: per generated token, the ids that top_k, top_p and "
            "min_p left, sorted.",
        ),
        "sampling_logprobs": Field(
            "list[float]", "with it: the sampled id's log prob among these ids."
        ),
    }
    sampling_mask: bool = False

    def added(self, output: RequestOutput, prompt: Prompt) -> Added:
        if (found := output.of(Kept)) is None:
            return NOTHING
        logprobs = [
            left[token] - math.log(math.fsum(map(math.exp, left.values())))
            for token, left in zip(output.token_ids, found.kept, strict=True)
        ]
        masks = [sorted(left) for left in found.kept]
        return Added({"sampling_mask": masks, "sampling_logprobs": logprobs})

    def contradictions(self, params: SamplingParams, model: ModelInfo) -> Iterable[tuple[str, str]]:
        if params.greedy:
            yield "sampling_mask", "a greedy answer is not sampled; give a temperature."
        if not params.filtered:
            yield (
                "sampling_mask",
                "without top_k, top_p or min_p every token is left, and the log probs "
                "over them are `logprobs`; set a filter, or leave sampling_mask out.",
            )
        tops = params.of(TopLogprobs)
        for name in tops.values() if tops else ():
            yield "sampling_mask", f"{name} is set too; leave one of the two out."
