"""`thinking_token_budget`: the most tokens of a thought, as in vLLM."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _inf.parts.grammars import is_constrained
from _inf.parts.part import NOTHING, Added, Field, Part, Record
from _inf.request.keyword import Keyword
from _inf.request.values import count

if TYPE_CHECKING:
    from _inf.types import ModelInfo, Prompt, RequestOutput, SamplingParams, ThoughtMarks


def _tokens(name: str, value: object) -> int | None:
    number = count(name, value, least=-1)
    return None if number == -1 else number


@dataclasses.dataclass(frozen=True)
class Forced(Record):
    """The places of the tokens that a budget forced."""

    places: Sequence[int]

    @property
    def unsampled(self) -> Sequence[int]:
        return self.places


@dataclasses.dataclass(frozen=True)
class Budget(Part):
    """marks: the model's, where the budget counts."""

    keywords = {
        "thinking_token_budget": Keyword(
            _tokens,
            "The most tokens of a thought. Then the end mark of the config's `reasoning_parser` "
            "follows, forced: these tokens have mask 0. From 0; -1: no limit (as vLLM; "
            "docs/reasoning.md).",
            int,
            "",
            "thinking_token_budget",
            refused={
                "agent loop": "cannot be used with agent_loop, whose mask says what was sampled",
                "loop request": "",
            },
        )
    }
    row_metadata = {
        "forced_at": Field(
            "Sequence[int]",
            "only if `thinking_token_budget` ended a thought: the places of the forced tokens.",
            default=(),
        )
    }
    order = 1  # after the masks, which must not rule out what is forced
    thinking_token_budget: int = 0
    marks: ThoughtMarks | None = None

    @classmethod
    def asked(cls, values: Mapping[str, Any], model: ModelInfo) -> Budget | None:
        tokens = values.get("thinking_token_budget")
        return None if tokens is None else cls(tokens, model.thought_marks)

    def added(self, output: RequestOutput, prompt: Prompt) -> Added:
        if (found := output.of(Forced)) is None:
            return NOTHING
        return Added(metadata={"forced_at": list(found.places)}, unsampled=found.places)

    def contradictions(self, params: SamplingParams, model: ModelInfo) -> Iterable[tuple[str, str]]:
        if is_constrained(params):
            why = "an answer with a grammar has no thought; leave it out."
            yield "thinking_token_budget", why
        if model.tokenizer is not None and self.marks is None:
            why = "the marks of a thought are not known; set reasoning_parser in the config."
            yield "thinking_token_budget", why
