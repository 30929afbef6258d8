"""`logprobs` and `logprob_token_ids`: log probs of tokens other than the sampled one, as in
vLLM."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from _inf.parts.part import NOTHING, Added, Field, Part, Record
from _inf.request import values
from _inf.request.keyword import NOT_IN_TURNS, ONLY_AS_JSON, Keyword

if TYPE_CHECKING:
    from _inf.types import ModelInfo, Prompt, RequestOutput, SamplingParams

MAX_IDS = 128  # as vLLM


@dataclasses.dataclass(frozen=True)
class Tops(Record):
    """Per generated token, log probs by token: of the likeliest ones or of those that are named,
    and of the generated one."""

    tops: list[dict[int, float]]


@dataclasses.dataclass(frozen=True)
class TopLogprobs(Part):
    """logprobs: how many of the likeliest tokens to return at each position."""

    keywords = {
        "logprob_token_ids": Keyword(
            partial(values.token_ids, least=1, most=MAX_IDS),
            "Ids whose log probs to return per position (`top_logprobs`). At most 128, in their "
            "order, instead of the likeliest ones; `logprobs`, if given too, must be their number "
            "(as vLLM).",
            list[int],
            "",
            "logprob_token_ids",
            of_tokens=True,
            refused={**NOT_IN_TURNS, **ONLY_AS_JSON},
        ),
        "logprobs": Keyword(
            values.likeliest,
            "How many of the likeliest tokens to return per position (`top_logprobs`). From 0, "
            "the default, to the vocabulary's size; -1: all (as vLLM). Each takes some 200 bytes: "
            "all of a vocabulary of 50,000 are 10 MB a token. Above 20, a call that may not fit "
            "into memory is refused.",
            feature="top_logprobs",
            typed="int",
            per_prompt=False,
            neutral=0,
            of_tokens=True,
            refused={**NOT_IN_TURNS, **ONLY_AS_JSON},
        ),
    }
    row_fields = {
        "top_logprobs": Field(
            "list[dict[int, float]]",
            "only with `logprobs=k`: a dict per generated token, from the k likeliest ids and the "
            "sampled id to their log probs, the likeliest first. With `logprob_token_ids`, of "
            "these ids and the sampled one. Ids that are ruled out have none.",
            in_json=True,
        )
    }
    fewer = "fewer of them, or of max_tokens,"
    logprobs: int = 0
    logprob_token_ids: Sequence[int] | None = None

    def added(self, output: RequestOutput, prompt: Prompt) -> Added:
        found = output.of(Tops)
        return NOTHING if found is None else Added({"top_logprobs": found.tops})

    def in_chunk(self, output: RequestOutput, new: slice) -> dict[str, object]:
        found = output.of(Tops)
        return {} if found is None else {"top_logprobs": found.tops[new]}

    def listed(self, params: SamplingParams, prompt_tokens: int) -> dict[str, tuple[int, int]]:
        return {"logprobs": (self.logprobs, params.max_tokens)}

    def contradictions(self, params: SamplingParams, model: ModelInfo) -> Iterable[tuple[str, str]]:
        if (named := self.logprob_token_ids) and self.logprobs not in (0, len(named)):
            yield (
                "logprobs",
                f"{self.logprobs} is not the number of logprob_token_ids, whose log probs are "
                "returned instead; leave it out.",
            )
