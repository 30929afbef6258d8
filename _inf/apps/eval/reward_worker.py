"""The caller's end of one process, or thread, in which a reward function runs.

In: the arguments of calls. Out: what the function returned, or a `RewardError`. A call that takes
too long, or ends the process, is an error of the calls that were under way there; the next call
starts another one. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import multiprocessing
import os
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

from _inf.apps.eval.reward_process import RewardFunction, answer_calls
from _inf.errors import InferenceError

START_SECONDS = 120.0
EXIT_SECONDS = 10.0
GRACE_SECONDS = 5.0  # for an async function to end itself after its time
PROGRAM = "from _inf.apps.eval.reward_process import serve; serve({file}, {parent})"


class RewardError(InferenceError):
    """A reward function gave no reward for one row; the message says why."""


@dataclasses.dataclass
class Call:
    answer: asyncio.Future[Any]
    seconds: float
    timer: asyncio.TimerHandle | None = None


class RewardWorker:
    """function: pickled, for a process; itself, for a thread. is_async: whether several calls may
    be under way, known when it has started."""

    is_async = False

    def __init__(self, function: bytes | RewardFunction) -> None:
        self._function = function
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._calls: dict[int, Call] = {}
        self._number = 0
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start it and load the function, if it does not run. Raises `RewardError`."""
        async with self._starting:
            if self._connection is not None:
                return
            loop = asyncio.get_running_loop()
            self._launch()
            assert self._connection is not None
            loaded = loop.create_future()
            self._calls = {-1: Call(loaded, START_SECONDS)}
            self._begun(-1, f"the reward function did not load within {START_SECONDS:g} s")
            loop.add_reader(self._connection.fileno(), self._take)
            self.is_async = await loaded

    async def call(self, arguments: dict[str, Any], seconds: float) -> Any:
        """Return what the function returns. Raises `RewardError`."""
        await self.start()
        assert self._connection is not None
        self._number += 1
        call = Call(asyncio.get_running_loop().create_future(), seconds)
        self._calls[self._number] = call
        try:
            self._connection.send((self._number, arguments, seconds))
        except OSError:
            self._lost()
        return await call.answer

    def _launch(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        if not isinstance(self._function, bytes):
            function = self._function
            work = threading.Thread(target=answer_calls, args=(theirs, lambda: function))
            work.daemon = True  # a call that never ends does not keep the caller
            work.start()
            return
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(file=theirs.fileno(), parent=os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        with contextlib.suppress(OSError):  # it has ended already; the connection will say so
            self._connection.send(self._function)

    def _take(self) -> None:
        """Take one message."""
        assert self._connection is not None
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            self._lost()
            return
        number, kind, value = message if len(message) == 3 else (-1, *message)
        call = self._calls.get(number)
        if kind == "started":
            self._begun(number, "")
            return
        if call is None:
            return
        del self._calls[number]
        if call.timer is not None:
            call.timer.cancel()
        if kind == "returned":
            _set(call.answer, value)
        elif kind == "late":
            _fail(call.answer, _late(call.seconds))
        else:
            _fail(call.answer, f"the reward function raised {value}")
            if number == -1:  # it has no function: the next call starts another one
                self.close("")

    def _begun(self, number: int, reason: str) -> None:
        call = self._calls[number]
        grace = GRACE_SECONDS if self.is_async else 0.0

        def end() -> None:
            del self._calls[number]
            _fail(call.answer, reason or _late(call.seconds))
            self.close(f"another call was under way there, and {_late(call.seconds)}")

        call.timer = asyncio.get_running_loop().call_later(call.seconds + grace, end)

    def _lost(self) -> None:
        code: object = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(EXIT_SECONDS)
        self.close(f"the process of the reward function ended with exit code {code}.")

    def close(self, reason: str) -> None:
        """End the process, or leave the thread to itself; the calls under way fail."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(EXIT_SECONDS)
        if self._connection is not None:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._connection.close()
        self._process = self._connection = None
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if call.timer is not None:
                call.timer.cancel()
            _fail(call.answer, reason)


def _late(seconds: float) -> str:
    return f"the reward function took longer than {seconds:g} s."


def _set(answer: asyncio.Future[Any], value: Any) -> None:
    if not answer.done():
        answer.set_result(value)


def _fail(answer: asyncio.Future[Any], reason: str) -> None:
    if not answer.done():
        answer.set_exception(RewardError(reason))
