"""`Translation`: what a part sends to a server for a row, and what it takes from the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from _inf.parts.part import Part, Record
from _inf.types import Request, RequestOutput, SamplingParams

PartT = TypeVar("PartT", bound=Part)


class Translation(Generic[PartT]):
    """A part's `openai.py` has a subclass of this name; an answer has an object of it."""

    def __init__(self, part: PartT, request: Request) -> None:
        self.part, self.request = part, request

    def sent(self) -> dict[str, Any]:
        """Fields of the body, by OpenAI's and vLLM's names."""
        return self.part.values()

    def check(self, *, ours: bool) -> None:
        """Refuse what the server cannot give. ours: whether its log probs are by our definition."""

    def take(self, choice: Mapping[str, Any], new: Sequence[int]) -> None:
        """Take a choice of vLLM's answer, or of its next chunk, with these new ids."""

    def record(self, ids: Sequence[int], logprobs: Sequence[float]) -> Record | None:
        """The part's record of the answer so far."""
        return None

    def corrected(self, row: RequestOutput) -> RequestOutput:
        """The answer so far, with what the part knows of its tokens."""
        return row


def translations(request: Request) -> list[Translation[Any]]:
    return [part.on("openai", Translation)(part, request) for part in request.params.parts]


def sent_by_parts(params: SamplingParams) -> dict[str, object]:
    """The fields of a body that the parts of a row give."""
    sent: dict[str, object] = {}
    for each in translations(Request([], params)):
        sent |= each.sent()
    return sent
