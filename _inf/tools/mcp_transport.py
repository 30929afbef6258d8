"""The transports to MCP servers, from version 2 of the package `mcp`, with a correction: an HTTP
request that fails ends the package's connection, and with it the calls of all rows. Here it is an
error of its own call.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import IO, Any

import httpx2
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

from _inf.errors import error_text
from _inf.tools.mcp_files import McpEntry

CONNECT_SECONDS = 60.0  # npx and uvx may download a server first
# How the package's own errors of a lost connection begin, and those of `HttpClient`: servers use
# the code `CONNECTION_CLOSED` for any error of theirs.
LOST_WORDS = ("Connection closed", "SSE ")


class Transport:
    """The streams to one server. lost: whether a program has closed its stdout, or a URL has
    forgotten the session."""

    def __init__(self, address: McpEntry, log: IO[bytes]) -> None:
        self._address, self._log = address, log
        self.lost: Callable[[], bool] = lambda: False

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[object]:
        address = self._address
        if address.command is None:
            async with HttpClient(address) as http:
                self.lost = lambda: http.session_is_unknown
                url = str(address.url)
                async with streamable_http_client(
                    url, http_client=http, max_sse_event_size=None
                ) as pair:
                    yield pair
            return
        program = StdioServerParameters(
            command=address.command,
            args=address.args,
            env=address.env,
            # Under "strict" the package reads nothing more after one wrong byte, and says nothing.
            encoding_error_handler="replace",
        )
        async with stdio_client(program, errlog=self._log) as pair:
            self.lost = lambda: not pair[0].statistics().open_send_streams
            yield pair


class HttpClient(httpx2.AsyncClient):
    """Answers a message that fails with an error as of a server. session_is_unknown: the server
    does not know the session any more."""

    def __init__(self, address: McpEntry) -> None:
        super().__init__(
            headers=address.headers,
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),  # a call has its own limit
            limits=httpx2.Limits(max_keepalive_connections=20),  # no row waits for another's
        )
        self.session_is_unknown = False

    async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        if request.method != "POST":
            return await super().send(request, **how)
        try:
            response = await super().send(request, **how)
            events = response.headers.get("content-type", "").startswith("text/event-stream")
            if not events and response.next_request is None:  # here a body that is cut is an error
                await response.aread()
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as failure:
            return _failed(request, error_text(failure), INTERNAL_ERROR)
        except httpx2.HTTPError as failure:
            return _failed(request, f"{LOST_WORDS[0]}: {error_text(failure)}", CONNECTION_CLOSED)
        if response.status_code == 404 and "mcp-session-id" in request.headers:
            self.session_is_unknown = True
        if response.is_error and not events and b'"jsonrpc"' not in response.content:
            # The package would not say the status.
            status = response.status_code
            said = f"HTTP {status} {response.reason_phrase}"
            return _failed(request, said, INTERNAL_ERROR, status)
        return response


def _failed(request: httpx2.Request, message: str, code: int, status: int = 502) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(status, json=error, request=request)
