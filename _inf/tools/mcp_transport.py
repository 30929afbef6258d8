"""The transports to MCP servers, from version 2 of the package `mcp`, with two corrections.

- The package reads a line of a program (`client/stdio.py`) and the JSON answer of a URL
  (`client/streamable_http.py`) as long as the server sends. A message, or a
  list of tools, has `MESSAGE_BYTES` at most.
- An HTTP request that fails ends the package's connection, and with it the calls of all rows. It
  is an error of its own call.
"""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import IO, Any

import httpx2
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

from _inf.errors import error_text
from _inf.tools.mcp_files import Address

MESSAGE_BYTES = 8 * 2**20
CONNECT_SECONDS = 60.0  # npx and uvx may download a server first
# How the package's own errors of a lost connection begin, and those of `HttpClient`: servers use
# the code `CONNECTION_CLOSED` for any error of theirs.
LOST_WORDS = ("Connection closed", "SSE ")


class MessageTooLarge(Exception):
    def __init__(self) -> None:
        super().__init__(
            f"the server sent a message, or a list of tools, of more than {MESSAGE_BYTES:,} bytes"
        )


class Transport:
    """The streams to one server. on_failure: called if a program sends too much; the package would
    keep reading until the program ends."""

    def __init__(
        self, address: Address, log: IO[bytes], on_failure: Callable[[Exception], None]
    ) -> None:
        self._address, self._log, self._on_failure = address, log, on_failure
        self._has_ended: Callable[[], bool] = lambda: False

    @property
    def lost(self) -> bool:
        """Whether a program has closed its stdout, or a URL has forgotten the session."""
        return self._has_ended()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        if self._address.command is None:
            async with HttpClient(self._address) as http, _url_streams(self._address, http) as pair:
                self._has_ended = lambda: http.session_is_unknown
                yield pair
            return
        program = StdioServerParameters(
            command=self._address.command,
            args=self._address.args,
            env=self._address.env,
            encoding=ENCODING,
            # Under "strict" the package reads nothing more after one wrong byte, and says nothing.
            encoding_error_handler="replace",
        )
        _too_long.set(self._on_failure)
        async with stdio_client(program, errlog=self._log) as pair:
            self._has_ended = lambda: not pair[0].statistics().open_send_streams
            yield pair


def _url_streams(address: Address, http: HttpClient) -> Any:
    return streamable_http_client(
        str(address.url), http_client=http, max_sse_event_size=MESSAGE_BYTES
    )


class HttpClient(httpx2.AsyncClient):
    """Answers a message that fails, or whose answer is too large, with an error as of a server.
    session_is_unknown: the server does not know the session any more."""

    def __init__(self, address: Address) -> None:
        super().__init__(
            headers={"Accept-Encoding": "identity", **address.headers},
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),  # a call has its own limit
            limits=httpx2.Limits(max_keepalive_connections=20),  # no row waits for another's
        )
        self.session_is_unknown = False

    async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        if request.method != "POST":
            return await super().send(request, **how)
        try:
            return await self._answer(request, await super().send(request, **how))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as failure:
            return _failed(request, error_text(failure), INTERNAL_ERROR)
        except (httpx2.HTTPError, MessageTooLarge) as failure:
            lost = f"{LOST_WORDS[0]}: {error_text(failure)}"
            return _failed(request, lost, CONNECTION_CLOSED)

    async def _answer(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The response with its body read; a stream of events or a redirect as it is."""
        events = response.headers.get("content-type", "").startswith("text/event-stream")
        if events or response.next_request is not None:
            return response
        body = bytearray()
        try:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise httpx2.DecodingError("it compressed its answer, though it was not asked to")
            async for part in response.aiter_raw():
                body += part
                if len(body) > MESSAGE_BYTES:
                    raise MessageTooLarge
        finally:
            await response.aclose()
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            self.session_is_unknown = True
        if response.is_error and b'"jsonrpc"' not in body:  # the package would not say the status
            said = f"HTTP {response.status_code} {response.reason_phrase}"
            return _failed(request, said, INTERNAL_ERROR, response.status_code)
        status, headers = response.status_code, response.headers
        return httpx2.Response(status, headers=headers, content=bytes(body), request=request)


def _failed(request: httpx2.Request, message: str, code: int, status: int = 502) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(status, json=error, request=request)


ENCODING = "inf_limited_lines"  # UTF-8, for the package to read a program's lines with
# Set in the task that opens a transport; the package decodes in a task of that one.
_too_long: ContextVar[Callable[[Exception], None]] = ContextVar("inf_mcp_too_long")


class _Lines(codecs.BufferedIncrementalDecoder):
    """Decodes UTF-8; a line that is too long is a failure of the transport that reads it."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._fail, self._line = _too_long.get(), 0

    def _buffer_decode(self, data: Any, errors: str, final: bool) -> tuple[str, int]:
        text, size = codecs.utf_8_decode(data, errors, final)
        _, newline, last = text.rpartition("\n")
        self._line = len(last) if newline else self._line + len(last)
        if self._line > MESSAGE_BYTES:
            self._fail(failure := MessageTooLarge())
            raise failure
        return text, size


def _codec(name: str) -> codecs.CodecInfo | None:
    if name != ENCODING:
        return None
    utf_8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf_8.encode, utf_8.decode, incrementaldecoder=_Lines, name=ENCODING)


codecs.register(_codec)
