"""Calls a reward function of verl's form, several calls at once, each bounded in time: verl's
`default_compute_score`, or one of the user. A call that raises, hangs or ends its process is an
error of its row alone."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import cloudpickle

from _inf.apps.code_version import CodeVersion, version_of
from _inf.apps.eval.reward_process import RewardFunction
from _inf.apps.eval.reward_worker import RewardError, RewardWorker
from _inf.errors import ConfigError, error_text, shown
from _inf.response.json_values import DEEPEST, json_value

MAX_WORKERS = 8  # by default
SECONDS = 60.0  # of one call
CALLS_AT_ONCE = 32  # of an async function, in each worker
DEFAULT_NAME = "compute_score"


@dataclasses.dataclass(frozen=True)
class Reward:
    """A row's reward, and what else its function returned, by verl's names."""

    value: float
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, result: Any) -> Reward:
        """Check what a function returned. Raises `RewardError`."""
        extra = result if isinstance(result, dict) else {}
        if extra is result and "score" not in extra:
            raise RewardError(f"a reward's dict must have 'score'; it has {shown(list(result))}.")
        value = extra.get("score", result)
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):  # 10**400 is no float
            raise RewardError(f"a reward must be a number, not {shown(value)}.") from None
        if not math.isfinite(number):
            raise RewardError(f"a reward must be a finite number, not {number}.")
        for name, other in extra.items():
            _check_value(name, other)
        return cls(number, extra)


class RewardPool:
    """Scores rows in up to `workers` processes, each started when those before it are busy; an
    async context manager, used from its event loop.

    function: a function, "FILE.py:NAME", or None for verl's `default_compute_score`.
    seconds: of one call; a call that takes longer is an error, and a sync function's process ends.
    workers: None for a process for each core, at most 8; 0 for a thread of this process.

    Raises `ConfigError` for a function that cannot be loaded or sent to a process.
    """

    def __init__(
        self,
        function: RewardFunction | str | None,
        seconds: float = SECONDS,
        workers: int | None = None,
    ) -> None:
        self._reward = function = named(function)
        self._seconds = seconds
        self.version: CodeVersion = version_of(function)
        workers = reward_workers(workers)
        runs = _pickled(function, self.version) if workers else function
        self._workers = [RewardWorker(runs) for _ in range(workers or 1)]
        self._places: asyncio.LifoQueue[RewardWorker] = asyncio.LifoQueue()  # the last used first

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

    async def score(self, arguments: dict[str, Any]) -> Reward:
        """Score one answer. arguments: of `KEYWORDS`. Raises `RewardError`, and `ConfigError` for a
        data_source that verl's function does not know."""
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


def _check_value(name: str, value: Any) -> None:
    """Raise `RewardError` for what no file of rows holds, or no figure can be made of."""
    try:
        usable = json_value(value) == value
        if isinstance(value, int):
            float(value)  # 10**400 is no float
    except OverflowError:
        usable = False
    if not usable:
        raise RewardError(
            f"a reward's {name!r} must be finite and nested at most {DEEPEST} levels deep, "
            f"not {shown(value)}."
        )


def reward_workers(workers: int | None) -> int:
    """Return the number of processes: by default that of the cores, at most 8."""
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
    file, colon, name = function.rpartition(":")
    if function.endswith(".py"):
        file, name = function, DEFAULT_NAME
    if not file or not name.isidentifier():
        raise ConfigError(
            f"reward {function!r}: name a file and a function, FILE.py:{DEFAULT_NAME}."
        )
    if not Path(file).is_file():
        raise ConfigError(f"reward {function!r}: there is no file {file}.")
    return f"{file}:{name}"


def _pickled(function: RewardFunction | str | None, version: CodeVersion) -> bytes:
    try:
        return bytes(cloudpickle.dumps(function))
    except Exception as failure:  # of any class: objects pickle themselves
        held = f" It uses {', '.join(version.unknown)}." if version.unknown else ""
        raise ConfigError.of(
            "reward",
            f"{version.name} cannot be sent to the processes that call it "
            f"({error_text(failure)}).{held} Make such an object inside of the function, name the "
            "function as FILE.py:NAME, or set reward_workers=0: it is then called in this process.",
        ) from None
