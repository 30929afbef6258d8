"""The answers of chats in the forms of other APIs, as a list of parts: a thought, a text, calls."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, TypeAlias

from _inf.apps.serve.bodies import TranslatedChat
from _inf.apps.serve.calls import ServedCall
from _inf.apps.serve.choice import Choice, whole_chunk
from _inf.apps.serve.error_responses import RequestError
from _inf.apps.serve.responses import Responses
from _inf.parts.repetition import REPETITION
from _inf.response.row import GenerationRow
from _inf.response.streaming import StreamChunk
from _inf.types import JSON

Kind: TypeAlias = Literal["thought", "text"]
ABORTED = "The engine was paused, which ended the answer; send the request again."


class TranslatedResponses(Responses[TranslatedChat]):
    """A thought and a text grow while their part is open; each call comes whole."""

    name, event_name = "", ""

    def __init__(self, call: ServedCall, body: TranslatedChat, model: str) -> None:
        super().__init__(call, body, model)
        self._open: tuple[Kind, str] | None = None  # the part, and its text so far

    @property
    def _choice(self) -> Choice:
        return self.choices[0]

    def whole(self, rows: Sequence[GenerationRow]) -> str:
        self.events(self._choice, whole_chunk(rows[0]))
        return json.dumps(self._response())

    def events(self, choice: Choice, chunk: StreamChunk) -> list[str]:
        if chunk.finish_reason == "abort":  # their clients would take it for a whole answer
            raise RequestError(503, ABORTED)
        thought, text = choice.add(chunk)
        events = [*self._grown("thought", thought), *self._grown("text", text)]
        if choice.finish_reason is not None:
            events += self._closed()
            for call in choice.message.get("tool_calls", ()):
                events += self._call_events(call)
        return events

    @property
    def _was_cut(self) -> bool:
        """Whether a limit, or `repetition_detection`, ended the answer."""
        return self._choice.finish_reason in ("length", REPETITION)

    def _grown(self, kind: Kind, new: str) -> list[str]:
        if not new:
            return []
        events = []
        if self._open is None or self._open[0] != kind:
            events += [*self._closed(), *self._begin(kind)]
            self._open = (kind, "")
        self._open = (kind, self._open[1] + new)
        return [*events, self._delta(kind, new)]

    def _closed(self) -> list[str]:
        if self._open is None:
            return []
        ended, self._open = self._open, None
        return self._end(*ended)

    @abstractmethod
    def _response(self) -> JSON:
        """The response when all its parts have ended."""

    @abstractmethod
    def _begin(self, kind: Kind) -> list[str]: ...

    @abstractmethod
    def _delta(self, kind: Kind, new: str) -> str: ...

    @abstractmethod
    def _end(self, kind: Kind, text: str) -> list[str]: ...

    @abstractmethod
    def _call_events(self, call: JSON) -> list[str]: ...
