"""Everybody at once, for a long time, and 2,000 calls one after another: right answers, and nothing
kept that is over."""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from inf import GenerationTimeout, InferenceEngine
from tests.support.figures import Figures
from tests.support.schedulers import in_flight, load
from tests.support.scripts import SETTINGS, until
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.soak

STORM_SECONDS, THREADS, TASKS = 120, 32, 64
WARM_UP, REQUESTS, GROWTH = 1000, 2000, 0.03
IDLE_SECONDS = 30.0


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A private folder for temporary files."""
    folder = tmp_path_factory.mktemp("tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", str(folder))
        yield folder


@pytest.fixture(scope="module")
def engine(temporary: Path) -> Iterator[InferenceEngine]:
    with InferenceEngine(model_path=str(tiny_model()), rollout=SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def questions(engine: InferenceEngine) -> list[tuple[dict[str, Any], list[int]]]:
    """Forty calls, of 1 to 400 tokens with answers of 1 to 100, and the answer of each when no
    other call runs."""
    dice = random.Random(0)
    found = []
    for _ in range(40):
        ids = [dice.randint(5, 380) for _ in range(dice.randint(1, 400))]
        call: dict[str, Any] = {"max_tokens": dice.randint(1, 100), "temperature": 0}
        call |= {"prompt": {"prompt_token_ids": ids}, "ignore_eos": True}
        found.append((call, ids_of(engine.stream(**call))))
    return found


def ids_of(chunks: Any) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


class Storm:
    """What befell each call, by name; a call that is not answered right is under `wrong`."""

    def __init__(self, engine: InferenceEngine, questions: list[Any], seconds: float) -> None:
        self.engine, self.questions = engine, questions
        self.end = time.monotonic() + seconds
        self.befell: Counter[str] = Counter()
        self.wrong: list[tuple[str, Sequence[int], Sequence[int]]] = []
        self._lock = threading.Lock()

    def note(self, what: str, got: list[int], answer: list[int]) -> None:
        with self._lock:
            self.befell[what] += 1
            if got != answer:
                self.wrong.append((what, got, answer))

    def thread(self, seed: int) -> None:
        """Calls of every kind from one thread, one after another."""
        dice = random.Random(seed)
        while time.monotonic() < self.end:
            self.note("begun", [], [])
            call, answer = dice.choice(self.questions)
            match dice.randrange(5):
                case 0 | 1:
                    self.note("answered", self._generated(call), answer)
                case 2:
                    self.note("streamed", ids_of(self.engine.stream(**call)), answer)
                case 3:
                    got, most = list[int](), dice.randint(1, 40)
                    for chunk in self.engine.stream(**call):
                        got += chunk.token_ids
                        if len(got) >= most:
                            break
                    self.note("streams abandoned", got, answer[: len(got)])
                case _:
                    try:
                        got = self._generated(call, timeout=dice.uniform(0, 1))
                        self.note("answered", got, answer)
                    except GenerationTimeout:
                        self.note("timed out", [], [])

    def _generated(self, call: dict[str, Any], **more: Any) -> list[int]:
        params = {name: value for name, value in call.items() if name != "prompt"}
        return self.engine.generate(call["prompt"], **params, **more).token_ids[0]

    async def tasks(self, count: int) -> None:
        await asyncio.gather(*(self._task(random.Random(f"task {seed}")) for seed in range(count)))

    async def _task(self, dice: random.Random) -> None:
        """Calls of every kind from a task; half of them are cancelled, unless they are faster."""
        while time.monotonic() < self.end:
            self.note("begun", [], [])
            question, kind = dice.choice(self.questions), dice.choice([self._answer, self._stream])
            task = asyncio.ensure_future(kind(*question))
            await asyncio.wait({task}, timeout=dice.choice([None, dice.uniform(0, 1)]))
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                self.note("cancelled", [], [])

    async def _answer(self, call: dict[str, Any], answer: list[int]) -> None:
        params = {name: value for name, value in call.items() if name != "prompt"}
        rows = await self.engine.agenerate(call["prompt"], **params)
        self.note("answered", rows.token_ids[0], answer)

    async def _stream(self, call: dict[str, Any], answer: list[int]) -> None:
        got: list[int] = []
        async for chunk in self.engine.astream(**call):
            got += chunk.token_ids
        self.note("streamed", got, answer)


def held(engine: InferenceEngine) -> dict[str, int]:
    """What the caller's process and the scheduler hold, both idle."""
    gc.collect()
    scheduler = engine.rollout.host.children[0].pid
    both = {"caller": psutil.Process(), "scheduler": psutil.Process(scheduler)}
    found = {f"{name}'s descriptors": process.num_fds() for name, process in both.items()}
    found |= {f"{name}'s threads": process.num_threads() for name, process in both.items()}
    found |= {name: process.memory_info().rss for name, process in both.items()}
    files = len([*Path(tempfile.gettempdir()).rglob("*")])
    return found | {"files": files, "requests": in_flight(engine)}


def is_idle(engine: InferenceEngine) -> bool:
    """No request is known to the caller's side, none is left in the scheduler."""
    return until(lambda: in_flight(engine) == 0 and load(engine) == (0, 0), IDLE_SECONDS)


def test_answers_in_a_storm_are_those_given_alone(
    engine: InferenceEngine, questions: list[Any], figures: Figures
) -> None:
    storm = Storm(engine, questions, STORM_SECONDS)
    with ThreadPoolExecutor(THREADS + 1) as threads:
        calls = [threads.submit(storm.thread, seed) for seed in range(THREADS)]
        calls.append(threads.submit(asyncio.run, storm.tasks(TASKS)))
        for call in calls:
            call.result(STORM_SECONDS + 60)
    begun, seen = storm.befell.pop("begun"), storm.befell
    for what, count in sorted(seen.items()):
        figures("load", f"{THREADS} threads and {TASKS} tasks, {STORM_SECONDS} s: {what}", count)
    figures("load", "answers in it that differ from those given alone", len(storm.wrong))
    assert storm.wrong == []
    assert sum(seen.values()) == begun  # every call came to an end, and to one
    assert min(seen.values()) > 10 and len(seen) == 5
    assert is_idle(engine)
    for call, answer in questions:
        assert ids_of(engine.stream(**call)) == answer


def test_calls_one_after_another_leave_nothing_behind(
    engine: InferenceEngine, figures: Figures
) -> None:
    dice = random.Random(1)

    def ask(count: int) -> None:
        for _ in range(count):
            ids = [dice.randint(5, 380) for _ in range(dice.randint(1, 60))]
            engine.generate({"prompt_token_ids": ids}, max_tokens=dice.randint(1, 12))

    ask(WARM_UP)
    before = held(engine)
    ask(REQUESTS)
    assert is_idle(engine)
    after = held(engine)
    for name in ("caller", "scheduler"):
        share = after.pop(name) / before[name] - 1
        grown = f"{share:+.2%} of {before[name] / 1e6:.0f} MB"
        figures("load", f"{REQUESTS} calls one after another: resident memory, {name}", grown)
        assert share < GROWTH
    growth = {name: count - before[name] for name, count in after.items()}
    most = max(growth.values())
    figures("load", "descriptors, threads, files, requests: the most that any grew", most)
    assert most <= 0, growth
