"""`prompt_logprobs`: log probs of the prompt's tokens, and of the likeliest ones at each."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _inf.errors import ConfigError
from _inf.parts.part import NOTHING, Added, Field, Part, Record
from _inf.request.keyword import NOT_IN_TURNS, ONLY_AS_JSON, Keyword
from _inf.request.values import likeliest, typed

if TYPE_CHECKING:
    from _inf.types import ModelInfo, Prompt, RequestOutput, SamplingParams


def flag_or_likeliest(name: str, value: object, *, vocabulary: int) -> bool | int:
    if isinstance(value, bool):
        return value
    whole = typed(name, value, numbers.Integral, "a bool or an int")
    if most := likeliest(name, whole, vocabulary=vocabulary):
        return most
    raise ConfigError.of(name, "0 is out of range; True scores the prompt's tokens only.")


@dataclasses.dataclass(frozen=True)
class PromptScores(Record):
    """The log prob of each token of a prompt, None for the first; tops: the likeliest tokens at the
    same positions, if requested."""

    logprobs: list[float | None]
    tops: list[dict[int, float] | None]

    def of_tokens(self, ids: Sequence[int]) -> tuple[list[float], list[dict[int, float]]]:
        """The log prob of each token but the first, and log probs for its position: of the
        likeliest tokens and its own. ids: the tokens but the first."""
        logprobs = [value for value in self.logprobs[1:] if value is not None]
        tops = [top for top in self.tops[1:] if top is not None]
        rows = zip(tops, ids, logprobs, strict=True)
        return logprobs, [{**top, token: logprob} for top, token, logprob in rows]


@dataclasses.dataclass(frozen=True)
class PromptLogprobs(Part):
    """tops: how many of the likeliest tokens to return at each of the prompt's."""

    keywords = {
        "prompt_logprobs": Keyword(
            flag_or_likeliest,
            "Also score the prompt's tokens. True, or how many of the likeliest tokens to return "
            "at each of them too (`top_prompt_logprobs`), -1: all; default False.",
            feature="prompt_logprobs",
            typed="bool | int",
            per_prompt=False,
            neutral=False,
            of_tokens=True,
            refused={
                **NOT_IN_TURNS,
                **ONLY_AS_JSON,
                "stream": "stream() does not give them; use generate()",
            },
        )
    }
    row_fields = {
        "prompt_logprobs": Field(
            "list[float | None] | None",
            "only if requested: one float per prompt token, of softmax(logits) at any temperature; "
            "None for the first token; None for a row that failed, or that `pause` ended before "
            "its prompt was computed.",
        ),
        "top_prompt_logprobs": Field(
            "list[dict[int, float] | None] | None",
            "only with `prompt_logprobs=k`: a dict per prompt token, from the k likeliest ids at "
            "its position and its own id to their log probs, the likeliest first; None for the "
            "first token, and for a row that has no `prompt_logprobs`.",
            in_json=True,
        ),
    }
    tops: int = 0

    @classmethod
    def asked(cls, values: Mapping[str, Any], model: ModelInfo) -> PromptLogprobs | None:
        scored = values.get("prompt_logprobs", False)
        return None if scored is False else cls(0 if scored is True else scored)

    def added(self, output: RequestOutput, prompt: Prompt) -> Added:
        found = output.of(PromptScores)
        whole = output.finish_reason != "abort"
        if found is None or not (whole or len(found.logprobs) == len(prompt.token_ids)):
            return NOTHING
        fields: dict[str, object] = {"prompt_logprobs": found.logprobs}
        if self.tops:
            likeliest = found.of_tokens(prompt.token_ids[1:])[1]
            fields["top_prompt_logprobs"] = [None, *likeliest]
        return Added(fields)

    def listed(self, params: SamplingParams, prompt_tokens: int) -> dict[str, tuple[int, int]]:
        return {"prompt_logprobs": (self.tops, prompt_tokens)}

    def values(self) -> dict[str, object]:
        return {"prompt_logprobs": self.tops or True}
