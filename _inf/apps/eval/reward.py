"""Calls a reward function of verl's form, in processes of its own, each call bounded in time.

In: `compute_score(data_source, solution_str, ground_truth, extra_info)`, sync or async, that
returns a number, or a dict with `score`; verl's `default_compute_score`, or one of the user. Out:
`Reward`s. A call that raises, hangs or ends its process is an error of its row alone.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import multiprocessing
import os
import queue
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle

from _inf.errors import ConfigError, InferenceError, shown

RewardFunction = Callable[..., Any]
WORKERS = 2
SECONDS = 60.0  # of one call
START_SECONDS = 120.0
EXIT_SECONDS = 10.0
DEFAULT_NAME = "compute_score"
PROGRAM = "from _inf.apps.eval.reward_process import serve; serve({file}, {parent})"


class RewardError(InferenceError):
    """A reward function gave no reward for one row; the message says why."""


@dataclasses.dataclass(frozen=True)
class Reward:
    """A row's reward, and what else its function returned, by verl's names."""

    value: float
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, result: Any) -> Reward:
        """Check what a function returned. Raises `RewardError`."""
        extra = result if isinstance(result, dict) else {}
        if isinstance(result, dict) and "score" not in result:
            raise RewardError(f"a reward's dict must have 'score'; it has {shown(list(result))}.")
        value = extra.get("score", result)
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise RewardError(f"a reward must be a number, not {shown(value)}.") from None
        if not math.isfinite(number):
            raise RewardError(f"a reward must be a finite number, not {number}.")
        return cls(number, extra)


class RewardPool:
    """Scores rows in `WORKERS` processes, which start at the first call; a context manager.

    function: a function, "FILE.py:NAME", or None for verl's `default_compute_score`.
    seconds: of one call; a call that takes longer is ended together with its process.
    """

    def __init__(self, function: RewardFunction | str | None, seconds: float = SECONDS) -> None:
        if isinstance(function, str):
            check_named(function)
        pickled = cloudpickle.dumps(function)
        self._verls, self._seconds = function is None, seconds
        self._threads = concurrent.futures.ThreadPoolExecutor(WORKERS, "inf-reward")
        self._processes: queue.SimpleQueue[RewardProcess] = queue.SimpleQueue()
        self._all = [RewardProcess(pickled) for _ in range(WORKERS)]
        for process in self._all:
            self._processes.put(process)

    def submit(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]
    ) -> concurrent.futures.Future[Reward]:
        """Score one answer; the future raises `RewardError`, and `ConfigError` for a data_source
        that verl's function does not know."""
        arguments = {
            "data_source": data_source,
            "solution_str": solution_str,
            "ground_truth": ground_truth,
            "extra_info": extra_info,
        }
        return self._threads.submit(self._score, arguments)

    def _score(self, arguments: dict[str, Any]) -> Reward:
        process = self._processes.get()
        try:
            return Reward.of(process.call(arguments, self._seconds))
        except RewardError as failure:
            if self._verls and "NotImplementedError" in str(failure):
                raise ConfigError(
                    f"data_source {arguments['data_source']!r}: verl's default_compute_score has "
                    "no reward for it; give a function of your own (--reward FILE.py:NAME)."
                ) from None
            raise
        finally:
            self._processes.put(process)

    def __enter__(self) -> RewardPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._all:
            process.kill()  # a call under way then fails
        self._threads.shutdown()
        for process in self._all:
            process.close()


class RewardProcess:
    """One process with the function in it; started when it is first called, and again after its
    death. Used by one thread at a time."""

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def call(self, arguments: dict[str, Any], seconds: float) -> Any:
        """Return what the function returns. Raises `RewardError`."""
        if self._process is None:
            self._start()
        return self._answer(arguments, seconds)

    def _start(self) -> None:
        self._connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(file=theirs.fileno(), parent=os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        try:
            self._answer(self._pickled, START_SECONDS)
        except RewardError:  # it has no function: the next call starts another one
            self.close()
            raise

    def _answer(self, message: Any, seconds: float) -> Any:
        """Send, and wait for the answer: ("returned", value) or ("raised", text)."""
        assert self._connection is not None and self._process is not None
        try:
            self._connection.send(message)
            if not self._connection.poll(seconds):
                self.close()
                raise RewardError(f"the reward function took longer than {seconds:g} s.")
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            code = self._process.wait(EXIT_SECONDS)
            self.close()
            raise RewardError(
                f"the process of the reward function ended with exit code {code}."
            ) from None
        if kind == "raised":
            raise RewardError(f"the reward function raised {value}")
        return value

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(EXIT_SECONDS)
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None


def check_named(named: str) -> None:
    """Refuse a name of another form than FILE.py:NAME, and a file that is not there."""
    file, _, name = named.rpartition(":")
    if not file or not name.isidentifier():
        raise ConfigError(f"reward {named!r}: name a file and a function, FILE.py:{DEFAULT_NAME}.")
    if not Path(file).is_file():
        raise ConfigError(f"reward {named!r}: there is no file {file}.")


def function_name(function: RewardFunction | str | None) -> str:
    """How a run's description names the function."""
    if function is None:
        return "verl.utils.reward_score.default_compute_score"
    return function if isinstance(function, str) else getattr(function, "__qualname__", "reward")
