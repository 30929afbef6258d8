"""Continues the rows that `pause("abort")` has ended."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from _inf.errors import PromptError
from _inf.parts.part import Part
from _inf.types import RequestOutput

if TYPE_CHECKING:
    from _inf.types import Prompt, SamplingParams


@dataclasses.dataclass(frozen=True)
class Continued(Part):
    """so_far: the answer's first part. It counts in all parameters, and the output has both."""

    same_names = ("hf",)
    so_far: RequestOutput = dataclasses.field(default_factory=RequestOutput)
    order = -1  # the other parts find a whole answer

    def check_one_turn(self, prompt: Prompt) -> None:
        if (transcript := self.so_far.transcript) is not None:
            lacks = "tools" if transcript.environment is None else "environment_factory"
            raise row_lacks(lacks, prompt)

    def known_ids(self, ids: list[int]) -> list[int]:
        return ids + self.so_far.token_ids

    @property
    def known_tokens(self) -> int:
        return self.so_far.completion_tokens


def row_lacks(keyword: str, prompt: Prompt) -> PromptError:
    return PromptError(
        f"prompt {prompt.index} is a row with turns; pass the {keyword} that it began with."
    )


def with_first_part(params: SamplingParams, so_far: RequestOutput | None) -> SamplingParams:
    """The parameters of a request that continues an answer, if there is one."""
    if so_far is None:
        return params
    return dataclasses.replace(params, parts=(Continued(so_far), *params.parts))


def without_first_part(params: SamplingParams) -> SamplingParams:
    parts = tuple(part for part in params.parts if not isinstance(part, Continued))
    return dataclasses.replace(params, parts=parts)
