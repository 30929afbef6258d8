"""The caller's end of one process, or thread, in which a reward function runs.

A call that takes too long, or ends the process, is an error of the calls that were under way there;
the next call starts another one. Used from one event loop.

No pool of a library is used: those of the standard library, pebble's and anyio's run one call in a
process at a time (an async judge has 32), and their processes import a script without a `__main__`
guard again, which would start an engine in each.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from _inf.apps.eval.reward_process import LOADED, RewardFunction, answer_calls, load
from _inf.errors import InferenceError, error_text

START_SECONDS = 120.0
EXIT_SECONDS = 10.0
GRACE_SECONDS = 5.0  # for an async function to end itself after its time
PROGRAM = "from _inf.apps.eval.reward_process import serve; serve({file}, {parent})"


class RewardError(InferenceError):
    """A reward function gave no reward for one row; the message says why.

    raised: the name of the exception's class, if the function raised one.
    """

    def __init__(self, message: str, raised: str | None = None) -> None:
        super().__init__(message)
        self.raised = raised


class RewardWorker:
    """function: pickled, for a process; else for a thread. is_async: whether several calls may
    be under way, known when it has started."""

    is_async = False

    def __init__(self, function: bytes | RewardFunction | str | None) -> None:
        self._function = function
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._sender: ThreadPoolExecutor | None = None
        self._answers: dict[int, asyncio.Future[tuple[str, Any]]] = {}
        self._numbers = itertools.count(LOADED + 1)
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start it and load the function, if it does not run. Raises `RewardError`."""
        async with self._starting:
            if self._connection is not None:
                return
            self._launch()
            late = f"the reward function did not load within {START_SECONDS:g} s"
            try:
                self.is_async = await self._answer(LOADED, START_SECONDS, late)
            except RewardError:  # it has no function: the next call starts another one
                self.close("")
                raise

    async def call(self, arguments: dict[str, Any], seconds: float) -> Any:
        """Return what the function returns. Raises `RewardError`."""
        await self.start()
        assert self._connection is not None
        number = next(self._numbers)
        try:
            message = ForkingPickler.dumps((number, arguments, seconds))
        except Exception as failure:  # of any class: objects pickle themselves
            raise RewardError(
                "the row cannot be sent to the process of the reward function "
                f"({error_text(failure)})."
            ) from None
        limit = seconds + (GRACE_SECONDS if self.is_async else 0.0)
        late = f"the reward function took longer than {seconds:g} s."
        return await self._answer(number, limit, late, message)

    def _launch(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        # One thread sends: a function that does not read fills the connection, and a full one
        # would stop the event loop and its timers.
        self._sender = ThreadPoolExecutor(1, "reward-sender")
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._take)
        if not isinstance(self._function, bytes):
            # A daemon: a call that never ends does not keep the caller.
            work = (theirs, partial(load, self._function))
            threading.Thread(target=answer_calls, args=work, daemon=True).start()
            return
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(file=theirs.fileno(), parent=os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # a group of its own, which `stop` kills whole
            )
        self._send(ForkingPickler.dumps(self._function))

    def _send(self, message: memoryview) -> None:
        assert self._sender is not None and self._connection is not None
        # If the process has ended, the future keeps the OSError; `_take` sees the end.
        self._sender.submit(self._connection.send_bytes, message)

    async def _answer(
        self, number: int, seconds: float, late: str, message: memoryview | None = None
    ) -> Any:
        loop = asyncio.get_running_loop()
        answer = self._answers[number] = loop.create_future()
        timer = loop.call_later(seconds, self._late, answer, late)
        if message is not None:
            self._send(message)
        try:
            kind, value = await answer
        finally:
            timer.cancel()
            del self._answers[number]
        if kind == "late":
            raise RewardError(late)
        if kind == "raised":
            name, text = value
            raise RewardError(f"the reward function raised {text}", name)
        return value

    def _late(self, answer: asyncio.Future[tuple[str, Any]], late: str) -> None:
        if not answer.done():
            answer.set_exception(RewardError(late))
            self.close(f"another call was under way there, and {late}")

    def _take(self) -> None:
        assert self._connection is not None
        try:
            number, kind, value = self._connection.recv()
        except (EOFError, OSError):
            code: object = None
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = self._process.wait(EXIT_SECONDS)
            self.close(f"the process of the reward function ended with exit code {code}.")
            return
        if (answer := self._answers.get(number)) and not answer.done():
            answer.set_result((kind, value))

    def close(self, reason: str) -> None:
        """Stop it; the calls under way fail."""
        self.stop()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(RewardError(reason))

    def stop(self) -> None:
        """End the process and those that it started, or leave the thread to itself; the calls under
        way stay without an answer."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # all of them have ended
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(EXIT_SECONDS)
        if self._connection is not None and self._sender is not None:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._sender.submit(self._connection.close)  # after what it is sending
            self._sender.shutdown(wait=False)
        self._process = self._connection = self._sender = None
