"""What a fork server imports and its forks do in tests, by the names of functions here."""

from __future__ import annotations

import errno
import itertools
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

from _inf.runtime.fork_server import ForkedProcess, ForkServer
from _inf.runtime.processes import Worker


def imports(log: Path) -> None:
    """What the server does once."""
    os.environ["IMPORTED_BY"] = str(os.getpid())
    print("imported", flush=True)


def no_second_fork(log: Path) -> None:
    """Let the system refuse all forks but the first."""
    fork, forks = os.fork, itertools.count(1)

    def refuse() -> int:
        if next(forks) > 1:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    os.fork = refuse


def slow_imports(log: Path) -> None:
    time.sleep(60)


def set_up(log: Path) -> None:
    """What every fork does first."""


def report(writer: Connection) -> None:
    print("forked", flush=True)
    names = ("FOR_THE_FORK", "IMPORTED_BY", "TMPDIR")
    writer.send((os.getppid(), {name: os.environ.get(name) for name in names}))


def exit_with_7() -> None:
    os._exit(7)


def sleep() -> None:
    time.sleep(300)


def worker(function: str, log: Path) -> Worker:
    return Worker(f"{__name__}:{function}", log, setup=f"{__name__}:set_up")


def forked(server: ForkServer, target: Worker, *args: object) -> ForkedProcess:
    target.parent = server.pid()
    process = ForkedProcess(server, target=target, args=args, name="fork")
    process.start()
    return process


def server_that(imports: str, log: Path) -> ForkServer:
    """A server that calls this function once."""
    return ForkServer(f"{__name__}:{imports}", log)
