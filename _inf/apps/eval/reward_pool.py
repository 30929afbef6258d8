"""Calls a reward function of verl's form, several calls at once, each bounded in time: verl's
`default_compute_score`, or one of the user. A call that raises, hangs or ends its process is an
error of its row; the next call starts another process. Used from one event loop.

No pool of a library is used: those of the standard library, pebble's and anyio's run one call in a
process at a time (an async judge has 32), and their processes import a script without a `__main__`
guard again, which would start an engine in each.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle

from _inf.apps.code_version import CodeVersion, version_of
from _inf.apps.eval.reward import Reward, RewardError
from _inf.apps.eval.reward_process import (
    FILES,
    LOADED,
    RewardFunction,
    answer_calls,
    check_file,
    framed,
    load_function,
    received,
)
from _inf.errors import ConfigError, error_text, shown

MAX_WORKERS = 8  # by default
SECONDS = 60.0  # of one call
CALLS_AT_ONCE = 32  # of an async function, in each worker
START_SECONDS = 120.0
EXIT_SECONDS = 10.0
GRACE_SECONDS = 5.0  # for an async function to end itself after its time
DEFAULT_NAME = "compute_score"
PROGRAM = "from _inf.apps.eval.reward_process import serve_calls; serve_calls({file}, {parent})"


class RewardPool:
    """Scores rows in up to `workers` processes, each started when those before it are busy; an
    async context manager, used from its event loop.

    function: a function, "FILE.py:NAME", or None for verl's `default_compute_score`.
    seconds: of one call; a call that takes longer is an error, and a sync function's process ends.
    workers: None for a process for each core, at most 8; 0 for a thread of this process.

    Raises `ConfigError` for a function that cannot be loaded or sent to a process.

    code: the function's version by its text. files: the digests of the user's own files that `code`
    does not know and that its processes have loaded, such as modules of a computed name or path.
    """

    def __init__(
        self,
        function: RewardFunction | str | None,
        seconds: float = SECONDS,
        workers: int | None = None,
    ) -> None:
        self._reward = function = named(function)
        self._seconds = seconds
        self.code: CodeVersion = version_of(function)
        self.files: dict[str, str] = {}
        workers = reward_workers(workers)
        runs = _pickled(function, self.code) if workers else function
        self._workers = [RewardWorker(runs, self._loaded) for _ in range(workers or 1)]
        self._places: asyncio.LifoQueue[RewardWorker] = asyncio.LifoQueue()  # the last used first

    def _loaded(self, files: dict[str, str]) -> None:
        if not self.is_verls:  # which is known by verl's version
            self.files |= {k: v for k, v in files.items() if k not in self.code.files}

    @property
    def version(self) -> CodeVersion:
        """The function's version with all files that its processes have loaded so far."""
        return self.code.with_files(self.files.values())

    @property
    def is_verls(self) -> bool:
        return self._reward is None

    @property
    def at_once(self) -> int:
        """The most calls under way."""
        return len(self._workers) * CALLS_AT_ONCE

    async def __aenter__(self) -> RewardPool:
        first = self._workers[0]
        try:
            if not self.is_verls:  # which can be loaded, but takes seconds for it
                await first.start()
        except RewardError as failure:
            name = shown(self._reward) if isinstance(self._reward, str) else self.version.name
            raise ConfigError.of("reward", f"{name} cannot be used: {failure}") from None
        for worker in reversed(self._workers):
            for _ in range(CALLS_AT_ONCE if first.is_async else 1):
                self._places.put_nowait(worker)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for worker in self._workers:
            worker.stop()

    async def score(self, arguments: dict[str, object]) -> Reward:
        """Score one answer. arguments: by the names of `ARGUMENTS`. Raises `RewardError`, and
        `ConfigError` for a data_source that verl's function does not know."""
        worker = await self._places.get()
        try:
            return Reward.of(await worker.call(arguments, self._seconds))
        except RewardError as failure:
            if self.is_verls and failure.raised == "NotImplementedError":
                raise ConfigError(
                    f"data_source {arguments['data_source']!r}: verl's default_compute_score has "
                    "no reward for it; give a function of your own (--reward FILE.py:NAME)."
                ) from None
            raise
        finally:
            self._places.put_nowait(worker)


class RewardWorker:
    """One process, or thread, in which the function runs.

    function: pickled, for a process; else for a thread. loaded: called with the digests of files
    that it has loaded. is_async: whether several calls may be
    under way, known when it has started.
    """

    is_async = False

    def __init__(
        self,
        function: bytes | RewardFunction | str | None,
        loaded: Callable[[dict[str, str]], None],
    ) -> None:
        self._function, self._loaded = function, loaded
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[tuple[str, Any]]] = {}
        self._numbers = itertools.count(LOADED + 1)
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start it and load the function, if it does not run. Raises `RewardError`."""
        async with self._starting:
            if self._writer is not None:
                return
            ours, theirs = socket.socketpair()
            reader, self._writer = await asyncio.open_unix_connection(sock=ours)
            self._reading = asyncio.create_task(self._read(reader))
            late = f"the reward function did not load within {START_SECONDS:g} s"
            try:
                self._launch(theirs)
                self.is_async = await self._answer(LOADED, START_SECONDS, late)
            except BaseException:  # it has no function: the next call starts another one
                self.close("")
                raise

    def _launch(self, theirs: socket.socket) -> None:
        if not isinstance(self._function, bytes):
            # A daemon: a call that never ends does not keep the caller.
            work = (theirs, partial(load_function, self._function))
            threading.Thread(target=answer_calls, args=work, daemon=True).start()
            return
        with theirs, open(os.memfd_create("reward"), "w+b") as pickled:
            pickled.write(self._function)
            pickled.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(file=theirs.fileno(), parent=os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=pickled,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # a group of its own, which `stop` kills whole
            )

    async def call(self, arguments: dict[str, object], seconds: float) -> object:
        """Return what the function returns. Raises `RewardError`."""
        await self.start()
        number = next(self._numbers)
        try:
            message = framed((number, arguments, seconds))
        except Exception as failure:  # of any class: objects pickle themselves
            raise RewardError(
                "the row cannot be sent to the process of the reward function "
                f"({error_text(failure)})."
            ) from None
        limit = seconds + (GRACE_SECONDS if self.is_async else 0.0)
        late = f"the reward function took longer than {seconds:g} s."
        return await self._answer(number, limit, late, message)

    async def _answer(self, number: int, seconds: float, late: str, message: bytes = b"") -> Any:
        loop = asyncio.get_running_loop()
        answer = self._answers[number] = loop.create_future()
        timer = loop.call_later(seconds, self._late, answer, late)
        if self._writer is not None:
            self._writer.write(message)  # without waiting: the function may read nothing
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

    def _late(self, answer: asyncio.Future[tuple[str, object]], late: str) -> None:
        if not answer.done():
            answer.set_exception(RewardError(late))
            self.close(f"another call was under way there, and {late}")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                number, kind, value = await received(reader)
                if kind == FILES:
                    self._loaded(value)
                elif (answer := self._answers.get(number)) and not answer.done():
                    answer.set_result((kind, value))
        code: object = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(EXIT_SECONDS)
        self.close(f"the process of the reward function ended with exit code {code}.")

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
        if self._writer is not None and self._reading is not None:
            self._writer.transport.abort()
            self._reading.cancel()
        self._process = self._writer = self._reading = None


def reward_workers(workers: int | None) -> int:
    """Return the number of processes: by default the number of cores, at most 8."""
    if workers is None:
        return min(MAX_WORKERS, len(os.sched_getaffinity(0)))
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 0:
        raise ConfigError.of("reward_workers", f"it must be 0 or more, not {shown(workers)}.")
    return workers


def named(function: RewardFunction | str | None) -> RewardFunction | str | None:
    """Return "FILE.py:NAME" for "FILE.py" too, whose function has verl's name.

    Raises `ConfigError` for a name of another form, and for a file that is not there.
    """
    if not isinstance(function, str):
        if function is not None and not callable(function):
            raise ConfigError.of("reward", f"it must be a function, not {shown(function)}.")
        return function
    if function.endswith(".py"):
        function = f"{function}:{DEFAULT_NAME}"
    check_file(function, "reward", f"a function, FILE.py:{DEFAULT_NAME}")
    return function


def _pickled(function: RewardFunction | str | None, version: CodeVersion) -> bytes:
    try:
        return bytes(cloudpickle.dumps(function))
    except Exception as failure:  # of any class: objects pickle themselves
        raise ConfigError.of(
            "reward",
            f"{version.name} cannot be sent to the processes that call it "
            f"({error_text(failure)}). Make such an object inside of the function, name the "
            "function as FILE.py:NAME, or set reward_workers=0: it is then called in this process.",
        ) from None
