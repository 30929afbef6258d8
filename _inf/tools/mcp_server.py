"""The tools of MCP servers: one session a server and engine, which is made again if it is lost.

It has a thread and an event loop of its own, so that it serves calls of any loop and outlives an
engine that dies.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED

from _inf.errors import ToolError, did_you_mean, shown
from _inf.runtime.loop_thread import LoopThread
from _inf.tools.definition import checked_schema
from _inf.tools.execution import Executed
from _inf.tools.mcp_connection import (
    END_SECONDS,
    Connection,
    followed_request,
    read_what_arrived,
)
from _inf.tools.mcp_files import Address, McpEntry
from _inf.types import Tool


class McpServer:
    """One server of an engine. calls_per_second: None for no limit."""

    def __init__(self, address: Address, calls_per_second: float | None = None) -> None:
        self._address, self._name = address, f"the MCP server {address.name}"
        self._interval = 1 / calls_per_second if calls_per_second else 0.0
        self._last_call = -math.inf
        self._turn = asyncio.Lock()
        self._thread, self._pid = LoopThread("inf-mcp"), os.getpid()
        self._connecting: asyncio.Task[Connection] | None = None

    def tools(self, where: str) -> list[Any]:
        """Connect, and return the server's list of `mcp_types.Tool`. Raises `ToolError`."""
        return self._thread.submit(self._list(where)).result()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Executed:
        """Call a tool of the server from any event loop; cancelling this cancels it there."""
        return await asyncio.wrap_future(self._thread.submit(self._call(name, dict(arguments))))

    def close(self) -> None:
        """End the session and a server that was started for it; a later call begins another one.

        Does nothing in a fork, which does not own the server.
        """
        if self._connecting is None or os.getpid() != self._pid:
            return
        if not self._thread.is_current:  # else it is a finalizer, and `stop` ends the session
            with contextlib.suppress(concurrent.futures.TimeoutError):
                self._thread.submit(self._end()).result(END_SECONDS)
        self._thread.stop()

    async def _end(self) -> None:
        connecting, self._connecting = self._connecting, None
        self._turn = asyncio.Lock()  # a later call has another event loop
        if connecting is not None and _is_of_this_loop(connecting):
            connecting.cancel()  # it closes what it has begun
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await (await connecting).close()

    async def _connected(self) -> Connection:
        """Return the connection, or a new one if it is lost; all who wait get the same one."""
        await read_what_arrived()
        task = self._connecting
        if task is not None and (task.cancelled() or not _is_of_this_loop(task)):
            task = None  # of a call that began while `close` ended the others
        if task is None or (task.done() and (task.exception() or task.result().lost)):
            before = None if task is None or task.exception() else task.result()
            self._connecting = task = asyncio.ensure_future(self._connect(before))
        return await asyncio.shield(task)

    async def _connect(self, before: Connection | None) -> Connection:
        if before is not None:
            await before.close()
        connection = Connection(self._address)
        try:
            await connection.opened()
        finally:
            if connection.client is None:
                await connection.close()
        return connection

    async def _list(self, where: str) -> list[Any]:
        connection = await self._connected()
        if connection.client is None:
            raise ToolError(f"{where}: {self._name} cannot be used: {connection.why()}.")
        return connection.tools

    async def _call(self, name: str, arguments: dict[str, Any]) -> Executed:
        await self._wait_for_turn()
        for first in (True, False):
            connection = await self._connected()
            if connection.client is None:
                gone = f"{self._name} is gone, and cannot be connected to again"
                return Executed(error=f"{gone}: {connection.why()}")
            request = followed_request()
            try:
                return _executed(await connection.client.call_tool(name, arguments))
            except MCPError as failure:
                if await connection.never_ran(failure, request):
                    if first:
                        continue
                    refused = f"{self._name} did not take the call"
                    return Executed(error=f"{refused}: {connection.why(failure)}")
                if failure.code != CONNECTION_CLOSED or not connection.lost:
                    status = f" (HTTP {request.refused})" if request.refused else ""
                    return Executed(error=self._address.hidden(failure.message) + status)
                why = connection.why(failure, request.refused)
                lost = f"{self._name} was lost during the call ({why}), which may have been"
                return Executed(error=f"{lost} carried out and is not repeated")
        raise AssertionError("the second attempt returns")

    async def _wait_for_turn(self) -> None:
        if not self._interval:
            return
        now = asyncio.get_running_loop().time
        async with self._turn:  # who gives up waiting takes nobody's place
            await asyncio.sleep(self._last_call + self._interval - now())
            self._last_call = now()


def _is_of_this_loop(task: asyncio.Task[Any]) -> bool:
    return task.get_loop() is asyncio.get_running_loop()


def _executed(result: Any) -> Executed:
    """Convert an `mcp_types.CallToolResult`; its texts are joined by a space, as verl does."""
    others = sorted({part.type for part in result.content} - {"text"})
    if others:
        kinds = " and ".join(others)
        return Executed(error=f"it returned {kinds} content, and only text reaches the model")
    text = " ".join(part.text for part in result.content)
    if not result.content and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    if result.is_error:
        return Executed(error=text or "the server does not say why")
    return Executed(text)


@dataclass(frozen=True)
class McpCall:
    """The function of a tool: calls the server's tool `name`."""

    server: McpServer
    name: str

    async def __call__(self, /, **arguments: Any) -> Executed:
        return await self.server.call(self.name, arguments)


def mcp_tools(entry: McpEntry, where: str) -> list[Tool]:
    """Connect to an entry's servers and return the tools it chooses. Raises `ToolError`."""
    tools: list[Tool] = []
    listed: list[str] = []
    servers = [(prefix, McpServer(each, entry.rate_limit)) for prefix, each in entry.addresses]
    try:
        for prefix, server in servers:
            for each in server.tools(where):
                name = f"{prefix}{each.name}"
                listed.append(name)
                if name not in entry.exclude and (not entry.include or name in entry.include):
                    about = {"description": each.description or "", "parameters": each.input_schema}
                    schema = checked_schema({"name": name, **about}, f"{where}: {shown(name)}")
                    call = McpCall(server, each.name)
                    tools.append(Tool(name, schema, call, timeout=entry.timeout))
        for index, name in enumerate([*entry.include, *entry.exclude]):
            if name not in listed:
                hint = did_you_mean(name, listed) or f"; it has {', '.join(listed) or 'none'}."
                unknown = f"the server has no tool {shown(name)}{hint}"
                raise ToolError(f"{entry.chosen}[{index}]: {unknown}")
        if not tools:
            raise ToolError(f"{where}: no tool of the server is left.")
    except BaseException:
        for _, server in servers:
            server.close()
        raise
    return tools
