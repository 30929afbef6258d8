"""The thought before an answer, where the config's `reasoning_parser`, or a server, splits it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from _inf.parts.part import NOTHING, Added, Field, Part, Record
from _inf.types import RequestOutput

if TYPE_CHECKING:
    from _inf.response.row import GenerationRow
    from _inf.types import ToolCall


@dataclasses.dataclass(frozen=True)
class Reasoning(Part):
    row_fields = {
        "reasoning": Field(
            "str",
            "with the config's `reasoning_parser` the thought, without its marks; None for a row "
            "that has none.",
        )
    }
    row_metadata = {
        "reasoning_tokens": Field(
            "int", "only with a thought: how many tokens are the thought and its marks.", default=0
        )
    }


def thought(reasoning: str, tokens: int) -> Added:
    """What a row has of its thought."""
    if not reasoning:
        return NOTHING
    return Added({"reasoning": reasoning}, {"reasoning_tokens": tokens})


@dataclasses.dataclass(frozen=True)
class Said(Record):
    """What a server returns with an answer's text: the calls and the thought that it splits off,
    and how many of the tokens are the thought."""

    calls: Sequence[ToolCall] = ()
    reasoning: str = ""
    reasoning_tokens: int = 0

    def added(self) -> Added:
        return thought(self.reasoning, self.reasoning_tokens)


NOTHING_SAID = Said()


def said(output: RequestOutput) -> Said:
    return output.of(Said) or NOTHING_SAID


def reasoning_tokens(row: GenerationRow | RequestOutput) -> int:
    """How many tokens of an answer are its thought."""
    return said(row).reasoning_tokens if isinstance(row, RequestOutput) else row.reasoning_tokens
