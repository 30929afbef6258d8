"""An MCP server: `python mcp_program.py` on stdin and stdout, or with a port on 127.0.0.1.

It uses the server of the package `mcp`, which its version 1 called FastMCP. What it may do besides
is in the environment: `INF_TEST_CALLS`, a file with a line for each call; `INF_TEST_DIE`, a file
with which the calculator kills the server, once; `INF_TEST_START`: "hang", or what it says before
it fails.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

if (start := os.environ.get("INF_TEST_START")) == "hang":
    time.sleep(60)
elif start:
    sys.exit(start)

from mcp.server.mcpserver import Image, MCPServer  # noqa: E402

server = MCPServer("tests", log_level="ERROR")


def note(call: str) -> None:
    if file := os.environ.get("INF_TEST_CALLS"):
        with Path(file).open("a") as calls:
            calls.write(f"{call} {os.getpid()}\n")


@server.tool(description="The calculator.")
async def calculator(expression: str) -> str:
    note("calculator")
    if (die := Path(os.environ.get("INF_TEST_DIE", "/none"))).exists():
        die.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    a, operator, b = expression.split()
    return str({"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator])


@server.tool()
async def hang() -> str:
    """Never answers, and notes when it is told to stop."""
    note("hang")
    try:
        await asyncio.sleep(60)
    finally:
        note("stopped")
    return ""


@server.tool()
def block() -> str:
    """Keeps a thread busy, so that the server does not end by itself."""
    note("block")
    time.sleep(60)
    return ""


@server.tool()
def picture() -> list[str | Image]:
    """A text and an image."""
    return ["a dot", Image(data=b"x", format="png")]


@server.tool()
def words() -> list[str]:
    """Two texts."""
    return ["two", "texts"]


@server.tool()
def variables() -> dict[str, str]:
    """The server's environment."""
    return dict(os.environ)


@server.tool()
def pid() -> int:
    """The server's process."""
    return os.getpid()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
