"""The tools of MCP servers. An engine has one session with each server, used by all rows.

A call that is under way when its session is lost is an error, and is not repeated: it may have been
carried out. A session that was lost before a call is begun again for it.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import contextlib
import json
import math
import os
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

import anyio
from mcp import Client, MCPError
from mcp_types import CONNECTION_CLOSED, CallToolResult
from mcp_types import Tool as McpTool

from _inf.errors import ToolError, did_you_mean, error_text, shown, strip_punctuation
from _inf.runtime.loop_thread import LoopThread
from _inf.tools.definition import checked_schema
from _inf.tools.mcp_files import McpEntry
from _inf.tools.mcp_transport import CONNECT_SECONDS, LOST_WORDS, Transport
from _inf.tools.results import Executed, image_part
from _inf.types import JSON, Tool

END_SECONDS = 10.0  # `mcp` closes a server's stdin, and sends signals after 2 and 4 seconds
LOG_BYTES, LINE_CHARACTERS = 4000, 300


class Session:
    """One session, on the event loop of `thread`."""

    def __init__(self, thread: LoopThread, address: McpEntry) -> None:
        self._thread, self._address, self._name = thread, address, f"the MCP server {address.name}"
        self._client: Client | None = None  # the package's, while it is open
        self._tools: list[McpTool] = []
        self._failure: BaseException | None = None
        self._last_line = ""  # of the server's stderr, once it has ended
        self._opened, self._closing = asyncio.Event(), asyncio.Event()
        self._owner = thread.submit(self._own())

    @property
    def lost(self) -> bool:
        return self._owner.done() or (self._client is not None and self._transport.lost())

    def tools(self, where: str) -> list[McpTool]:
        """The server's list. Raises `ToolError` if it cannot be used."""
        self._thread.submit(self._opened.wait()).result()
        if self._client is None:
            raise ToolError(f"{where}: {self._name} cannot be used: {self._why()}.")
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, object]) -> Executed:
        """Call a tool from any event loop; cancelling this cancels it at the server."""
        return await asyncio.wrap_future(self._thread.submit(self._call(name, dict(arguments))))

    def end(self) -> concurrent.futures.Future[None]:
        """End it, and the server if it was started for it; calls under way are lost."""
        return self._thread.submit(self._end())

    async def _own(self) -> None:
        """Open it, wait for its end, and close it: the package's task groups must be left by the
        task that entered them."""
        with tempfile.TemporaryFile() as log, anyio.CancelScope() as opening:
            opening.deadline = anyio.current_time() + CONNECT_SECONDS
            self._transport = Transport(self._address, log)
            try:
                async with Client(self._transport.open()) as client:
                    # After a call of a tool that is not listed, the package would list them.
                    self._tools = await _all_tools(client)
                    opening.deadline, self._client = math.inf, client
                    self._opened.set()
                    await self._closing.wait()
            except Exception as failure:  # a group of what failed in the package's tasks
                while isinstance(inner := getattr(failure, "exceptions", None), tuple):
                    failure = inner[0]
                self._failure = failure
            finally:
                self._last_line = _last_line(log)
                self._opened.set()

    async def _end(self) -> None:
        self._closing.set()
        if self._client is None:
            self._owner.cancel()
        await asyncio.wait({asyncio.wrap_future(self._owner)}, timeout=END_SECONDS)

    async def _call(self, name: str, arguments: JSON) -> Executed:
        await self._opened.wait()
        if self._client is None:
            gone = f"{self._name} is gone, and cannot be connected to again"
            return Executed(error=f"{gone}: {self._why()}")
        try:
            return _executed(await self._client.call_tool(name, arguments))
        except MCPError as failure:
            if failure.code != CONNECTION_CLOSED or not failure.message.startswith(LOST_WORDS):
                return Executed(error=self._address.hidden(failure.message))
            if self._address.command is not None:
                await self._end()  # and read its stderr
            lost = f"{self._name} was lost during the call ({self._why(failure)}), which may"
            return Executed(error=f"{lost} have been carried out and is not repeated")

    def _why(self, failure: BaseException | None = None) -> str:
        """Say what ended the session or, if nothing did, what `failure` was."""
        failure = self._failure or failure
        parts = [f"it did not answer within {CONNECT_SECONDS:g} seconds"]
        if failure is not None:
            known = isinstance(failure, MCPError)  # its own class says nothing
            parts = [strip_punctuation(failure) if known else error_text(failure)]
        if self._last_line:
            parts.append(f"its stderr ends with {self._last_line!r}")
        return self._address.hidden("; ".join(parts))


class McpServer:
    """One server of an engine, on a thread with an event loop of its own: it serves calls of any
    loop, and outlives an engine that dies."""

    def __init__(self, address: McpEntry) -> None:
        self._address = address
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._session: Session | None = None
        self._thread = LoopThread("inf-mcp")

    def session(self) -> Session:
        """The session, or a new one if it is lost."""
        with self._lock:
            if self._session is None or self._session.lost:
                if self._session is not None:
                    self._session.end()
                self._session = Session(self._thread, self._address)
            return self._session

    def close(self) -> None:
        """End the session; a later call begins another one. Does nothing in a fork, which does not
        own the server."""
        with self._lock:
            session, thread = self._session, self._thread
            self._session, self._thread = None, LoopThread("inf-mcp")
        if session is None or os.getpid() != self._pid:
            return
        if not thread.is_current:  # else a finalizer runs there, and `stop` ends the session
            with contextlib.suppress(concurrent.futures.TimeoutError):
                session.end().result(END_SECONDS)
        thread.stop()


async def _all_tools(client: Client) -> list[McpTool]:
    tools: list[McpTool] = []
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if (cursor := page.next_cursor) is None:
            return tools


def _last_line(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_BYTES))
    lines = log.read().decode("utf-8", "replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")[:LINE_CHARACTERS]


def _executed(result: CallToolResult) -> Executed:
    """Convert a result of a call; its texts are joined by a space, as verl does."""
    others = sorted({part.type for part in result.content} - {"text", "image"})
    if others:
        kinds = " and ".join(others)
        return Executed(error=f"it returned {kinds} content, which no model is shown")
    text = " ".join(part.text for part in result.content if part.type == "text")
    if not result.content and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    if result.is_error:
        return Executed(error=text or "the server does not say why")
    if any(part.type == "image" for part in result.content):
        content = [
            image_part(base64.b64decode(part.data))
            if part.type == "image"
            else {"type": "text", "text": part.text}
            for part in result.content
        ]
        return Executed(text, content=content)
    return Executed(text)


@dataclass(frozen=True)
class McpCall:
    """The function of a tool: calls the server's tool `name`."""

    server: McpServer
    name: str

    async def __call__(self, /, **arguments: object) -> Executed:
        return await self.server.session().call(self.name, arguments)


def mcp_tools(entry: McpEntry, where: str) -> list[Tool]:
    """Connect to an entry's server and return the tools it chooses. Raises `ToolError`."""
    tools: list[Tool] = []
    server = McpServer(entry)
    try:
        offered = server.session().tools(where)
        listed = [each.name for each in offered]
        for each in offered:
            if each.name not in entry.exclude and (not entry.include or each.name in entry.include):
                about = {"description": each.description or "", "parameters": each.input_schema}
                place = f"{where}: {shown(each.name)}"
                schema = checked_schema({"name": each.name, **about}, place)
                call = McpCall(server, each.name)
                tools.append(Tool(each.name, schema, call, timeout=entry.timeout, of_server=True))
        chosen = "exclude" if entry.exclude else "include"
        for index, name in enumerate([*entry.include, *entry.exclude]):
            if name not in listed:
                hint = did_you_mean(name, listed) or f"; it has {', '.join(listed) or 'none'}."
                unknown = f"the server has no tool {shown(name)}{hint}"
                raise ToolError(f"{where}.{chosen}[{index}]: {unknown}")
        if not tools:
            raise ToolError(f"{where}: no tool of the server is left.")
    except BaseException:
        server.close()
        raise
    return tools
