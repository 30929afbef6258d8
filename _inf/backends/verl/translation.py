"""`Translation`: what a part sends to SGLang for a row, and what it takes from the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from _inf.parts.part import Part, Record
from _inf.types import Request, RequestOutput, SamplingParams

PartT = TypeVar("PartT", bound=Part)


class Translation(Generic[PartT]):
    """A part's `sglang.py` has a subclass of this name."""

    def __init__(self, part: PartT) -> None:
        self.part = part

    def sent(self, params: SamplingParams) -> dict[str, Any]:
        """SGLang's sampling parameters, and fields of its request, by their names there. Those of
        `custom_params` are for our own code in the scheduler's process. params: the row's."""
        return self.part.values()

    def record(
        self, meta: Mapping[str, Any], before: RequestOutput, row: int | None
    ) -> Record | None:
        """The part's record of an answer so far, from SGLang's `meta_info`; None: there is none.
        before: the same answer when it had fewer tokens. row: its number in the call, for an
        error."""
        return None

    def whole(self, request: Request, output: RequestOutput) -> RequestOutput:
        """The whole answer, of which `output` was computed; its end may show more."""
        return output
