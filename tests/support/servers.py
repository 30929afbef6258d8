"""Servers that know nothing of this library, as processes of their own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from tests.support.scripts import START_SECONDS, environment, until


@contextlib.contextmanager
def serving(
    command: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Start a server, {PORT} in its command being a free port, and yield its /v1 address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    log = folder / f"log-{port}"
    with log.open("w") as out:
        process = subprocess.Popen(
            [each.replace("{PORT}", port) for each in command],
            env={**environment(), **(variables or {})},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        health = f"http://127.0.0.1:{port}/health"
        assert until(lambda: _answers(health) or process.poll() is not None, START_SECONDS)
        assert process.poll() is None, log.read_text()[-3000:]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5)
    except OSError:
        return False
    return True
