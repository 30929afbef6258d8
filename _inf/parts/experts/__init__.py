"""`return_routed_experts`: which experts of a mixture of experts computed each token."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from _inf.parts.part import NOTHING, Added, Field, Part, Record
from _inf.request import values
from _inf.request.keyword import LATER, NOT_IN_TURNS, Keyword

if TYPE_CHECKING:
    from _inf.types import Prompt, RequestOutput


@dataclasses.dataclass(frozen=True)
class Experts(Record):
    """An int32 array of all tokens but the last x layers x k."""

    routed_experts: object


@dataclasses.dataclass(frozen=True)
class RoutedExperts(Part):
    keywords = {
        "return_routed_experts": Keyword(
            values.flag,
            "Also return which experts of a MoE model each token used. Default False "
            "(docs/parity.md).",
            feature="routed_experts",
            typed="bool",
            per_prompt=False,
            neutral=False,
            refused={**NOT_IN_TURNS, **LATER},
        )
    }
    row_fields = {
        "routed_experts": Field(
            "Any",
            "only with `return_routed_experts=True`: an int32 array per row, tokens x layers x k, "
            "for all tokens of prompt and answer except the last, which the model did not read.",
        )
    }
    instead = (
        " rollout.engine_kwargs.sglang.enable_return_routed_experts must be true when the engine "
        "starts, and the model must have experts."
    )
    return_routed_experts: bool = False

    def added(self, output: RequestOutput, prompt: Prompt) -> Added:
        found = output.of(Experts)
        return NOTHING if found is None else Added({"routed_experts": found.routed_experts})
