"""Limits what an MCP server may send in one message, which is read whole before it is cut.

Version 2 of `mcp` limits an event of a stream of events; the lines of a program
(`client/stdio.py`, `stdout_reader`) and the JSON answer of a URL (`client/streamable_http.py`,
`_handle_json_response`) grow as long as the server sends.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import Any

import httpx2

MESSAGE_BYTES = 8 * 2**20
ENCODING = "inf_limited_lines"  # UTF-8, for the package to read a program's lines with

# Called with the failure when a line is too long: the package goes on reading until the program
# ends. Set in the task that opens a connection; the package reads in a task of that one.
too_long: ContextVar[Callable[[Exception], None]] = ContextVar("inf_mcp_too_long")


class MessageTooLarge(httpx2.StreamError):
    """The package answers the call with it."""

    def __init__(self) -> None:
        super().__init__(f"the server sent a message of more than {MESSAGE_BYTES:,} bytes")


class LimitedAnswer(httpx2.AsyncByteStream):
    """The body of an answer; raises once it is too large."""

    def __init__(self, stream: httpx2.AsyncByteStream, *, compressed: bool) -> None:
        self._stream, self._compressed = stream, compressed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._compressed:  # its size says nothing of what is in it
            raise httpx2.StreamError("the server compressed its answer, though it was not asked to")
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > MESSAGE_BYTES:
                raise MessageTooLarge
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


def limited(response: httpx2.Response) -> None:
    """Limit the answer of a request; a stream of events has the package's own limit."""
    events = response.headers.get("content-type", "").startswith("text/event-stream")
    if isinstance(response.stream, httpx2.AsyncByteStream) and not events:
        compressed = response.headers.get("content-encoding", "identity") != "identity"
        response.stream = LimitedAnswer(response.stream, compressed=compressed)


class _Lines(codecs.BufferedIncrementalDecoder):
    """Decodes UTF-8; a line that is too long ends the connection that `too_long` is of."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._end, self._line = too_long.get(), 0

    def _buffer_decode(self, data: Any, errors: str, final: bool) -> tuple[str, int]:
        text, size = codecs.utf_8_decode(data, errors, final)
        _, newline, last = text.rpartition("\n")
        self._line = len(last) if newline else self._line + len(last)
        if self._line > MESSAGE_BYTES:
            self._end(failure := MessageTooLarge())
            raise failure
        return text, size


def _codec(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    utf_8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf_8.encode, utf_8.decode, incrementaldecoder=_Lines, name=ENCODING)


codecs.register(_codec)
