"""One connection to an MCP server, through version 2 of the official package `mcp`.

The package's task groups must be left by the task that entered them: one task opens a connection,
waits, and closes it. Calls are made from other tasks of the same event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, Any

import httpx2
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED

from _inf.errors import error_text, strip_punctuation
from _inf.tools.mcp_files import Address
from _inf.tools.mcp_limits import ENCODING, limited, too_long

CONNECT_SECONDS = 60.0  # npx and uvx may download a server first
END_SECONDS = 10.0  # `mcp` closes a server's stdin, and sends signals after 2 and 4 seconds
# Of mcp 2's errors with `CONNECTION_CLOSED` (`jsonrpc_dispatcher.py`, `streamable_http.py`).
PACKAGES_WORDS = ("Connection closed", "SSE ")
LOG_BYTES, LINE_CHARACTERS = 4000, 300
TURNS = 10  # of the event loop; five close the stream of a program whose output has ended


@dataclass
class HttpRequest:
    """What became of the request of one call; another's failure may end the connection of both."""

    begun: bool = False  # the server may have read some of it
    answered: bool = False  # the package may list the tools after that
    refused: str = ""  # the status
    unknown_session: bool = False

    async def trace(self, event: str, about: Any) -> None:
        """Httpcore calls it at each step, also of reaching a proxy."""
        if event.endswith("send_request_headers.started"):
            self.begun |= about["request"].method != b"CONNECT"

    def note(self, response: httpx2.Response) -> None:
        if response.request.method != "POST" or self.answered:
            return
        self.answered, self.refused = response.is_success, _refusal(response)
        in_session = "mcp-session-id" in response.request.headers
        self.unknown_session = response.status_code == 404 and in_session


# The package sends a request in a task of its own, with the context of its caller.
_REQUEST: ContextVar[HttpRequest | None] = ContextVar("inf_mcp_request", default=None)


def followed_request() -> HttpRequest:
    """The HTTP request of the call that this task makes next."""
    _REQUEST.set(request := HttpRequest())
    return request


async def read_what_arrived() -> None:
    """Let a `Connection` find out that its server has ended before now."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Connection:
    """client: None unless it could be opened. tools: the server's, as `mcp_types.Tool`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._from_server: Any = None  # what a started server writes on its stdout
        self._said = ""  # the last line of its stderr, once it has ended
        self._refused = ""  # the status of the last request to open it that was refused
        self._failure: BaseException | None = None
        self._opened, self._closing = asyncio.Event(), asyncio.Event()
        self._broken = False
        self.client: Any = None
        self.tools: list[Any] = []
        self._owner = asyncio.ensure_future(self._own())

    async def opened(self) -> None:
        """Wait until it is open or failed, at most `CONNECT_SECONDS`."""
        waiting = asyncio.ensure_future(self._opened.wait())
        await asyncio.wait(
            {self._owner, waiting}, timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        waiting.cancel()

    async def close(self) -> None:
        """End it, and the server if it was started here."""
        self._closing.set()
        if self.client is None:
            self._owner.cancel()
        if not (await asyncio.wait({self._owner}, timeout=END_SECONDS))[0]:
            self._owner.cancel()

    def _end(self, failure: Exception) -> None:
        self._failure = failure
        self._closing.set()

    async def _own(self) -> None:
        too_long.set(self._end)
        with tempfile.TemporaryFile() as log:
            try:
                async with Client(self._transport(log)) as client:
                    # After a call of a tool that is not listed, the package would list them.
                    self.tools = await _all_tools(client)
                    self.client = client
                    self._opened.set()
                    await self._closing.wait()
            except Exception as failure:  # a group of what failed in the package's tasks
                self._failure = failure
                while isinstance(inner := getattr(self._failure, "exceptions", None), tuple):
                    self._failure = inner[0]
            finally:
                self._said = _last_line(log)

    @contextlib.asynccontextmanager
    async def _transport(self, log: IO[bytes]) -> AsyncIterator[Any]:
        address = self._address
        if address.command is not None:
            program = StdioServerParameters(
                command=address.command,
                args=address.args,
                env=address.env,
                encoding=ENCODING,
                # Under "strict" mcp 2 reads nothing more after one wrong byte, and says nothing.
                encoding_error_handler="replace",
            )
            async with stdio_client(program, errlog=log) as streams:
                self._from_server = streams[0]
                yield streams
            return
        http = httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity", **address.headers},
            timeout=httpx2.Timeout(CONNECT_SECONDS, read=None),  # a call has its own limit
            limits=httpx2.Limits(max_keepalive_connections=20),  # no row waits for another's
            event_hooks={"request": [_follow], "response": [self._note]},
        )
        async with http, streamable_http_client(str(address.url), http_client=http) as streams:
            yield streams

    async def _note(self, response: httpx2.Response) -> None:
        if self.client is None and response.request.method == "POST":
            self._refused = _refusal(response)
        if (request := _REQUEST.get()) is not None:
            request.note(response)
        limited(response)

    @property
    def lost(self) -> bool:
        """Whether calls need another one: it has ended, or the server has closed its stdout."""
        ended = self._broken or self.client is None or self._owner.done()
        return ended or (
            self._from_server is not None and not self._from_server.statistics().open_send_streams
        )

    async def never_ran(self, failure: MCPError, request: HttpRequest) -> bool:
        """Whether a call that failed so did not reach a tool, because the connection is lost: an
        HTTP server does not know the session, or nothing of the request was sent to it."""
        if request.unknown_session:
            self._broken = True
            return True
        if not self._has_ended(failure, request):
            return False
        self._broken = True
        await self.close()
        # One that does not end may still send it.
        return self._address.url is not None and self._owner.done() and not request.begun

    def _has_ended(self, failure: MCPError, request: HttpRequest) -> bool:
        """Whether it is the package's own error of a lost connection: servers use the same code for
        any error of theirs. One that refuses requests over HTTP needs a new connection too."""
        if failure.code != CONNECTION_CLOSED:
            return False
        return self.lost or bool(request.refused) or failure.message.startswith(PACKAGES_WORDS)

    def why(self, failure: BaseException | None = None, refused: str = "") -> str:
        """Say what ended the connection or, if nothing did, what `failure` was. refused: the HTTP
        status of the call."""
        failure = self._failure or failure
        parts = [f"it did not answer within {CONNECT_SECONDS:g} seconds"]
        if failure is not None:
            known = isinstance(failure, MCPError)  # its own class says nothing
            parts = [strip_punctuation(failure) if known else error_text(failure)]
        if refused := refused or (self._refused if self.client is None else ""):
            parts.append(f"it refused a request with HTTP {refused}")
        if self._said:
            parts.append(f"its stderr ends with {self._said!r}")
        return self._address.hidden("; ".join(parts))


def _refusal(response: httpx2.Response) -> str:
    return f"{response.status_code} {response.reason_phrase}" if response.is_error else ""


async def _all_tools(client: Any) -> list[Any]:
    tools: list[Any] = []
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if (cursor := page.next_cursor) is None:
            return tools


async def _follow(request: httpx2.Request) -> None:
    if (followed := _REQUEST.get()) is not None:
        request.extensions["trace"] = followed.trace


def _last_line(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
    lines = log.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:LINE_CHARACTERS]
