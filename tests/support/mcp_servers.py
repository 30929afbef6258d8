"""MCP servers for tests: `mcp_program.py` as a process."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from tests.support.scripts import until

START_SECONDS = 60.0
NAMES = ("mcp_program", "mcp_raw")
PROGRAM = Path(__file__).with_name("mcp_program.py")


def stdio(calls: Path | None = None, **fields: Any) -> dict[str, Any]:
    """The entry of a server on its stdin and stdout, which notes its calls in a file."""
    env = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    env |= {} if calls is None else {"INF_TEST_CALLS": str(calls)}
    env |= fields.pop("env", {})
    return {"type": "mcp", "command": sys.executable, "args": [str(PROGRAM)], "env": env, **fields}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def http(port: int, calls: Path) -> subprocess.Popen[bytes]:
    """Start a server on a port of 127.0.0.1, and wait until it listens."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(port)],
        env={**os.environ, "INF_TEST_CALLS": str(calls)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    assert until(listens, START_SECONDS)
    return process


def noted(calls: Path) -> list[tuple[str, int]]:
    """The calls that servers noted, each with the server's process."""
    lines = calls.read_text().split("\n") if calls.exists() else []
    return [(line.split()[0], int(line.split()[1])) for line in lines if line]


def servers_of(parent: int) -> list[psutil.Process]:
    """The servers among the children of a process."""
    servers = []
    for child in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it ends
            if any(f"{name}.py" in " ".join(child.cmdline()) for name in NAMES):
                servers.append(child)
    return servers
