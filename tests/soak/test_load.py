"""Everybody at once, for a long time, and 2,000 calls one after another: right answers, and nothing
kept that is over."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import random
import tempfile
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


@dataclasses.dataclass(frozen=True)
class Question:
    """answer: its ids when no other call runs."""

    prompt: dict[str, list[int]]
    params: dict[str, Any]
    answer: list[int]


@pytest.fixture(scope="module")
def questions(engine: InferenceEngine) -> list[Question]:
    """Forty calls, of 1 to 400 tokens with answers of 1 to 100."""
    dice = random.Random(0)
    found = []
    for _ in range(40):
        ids = [dice.randint(5, 380) for _ in range(dice.randint(1, 400))]
        params = {"max_tokens": dice.randint(1, 100), "temperature": 0, "ignore_eos": True}
        prompt = {"prompt_token_ids": ids}
        found.append(Question(prompt, params, ids_of(engine.stream(prompt, **params))))
    return found


def ids_of(chunks: Any) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


class Storm:
    """befell: what befell each call. wrong: what was not answered right."""

    def __init__(self, engine: InferenceEngine, questions: list[Question], seconds: float) -> None:
        self.engine, self.questions = engine, questions
        self.end = time.monotonic() + seconds
        self.begun, self.befell, self.wrong = list[None](), list[str](), list[Any]()

    def asks(self, dice: random.Random) -> Iterator[Question]:
        while time.monotonic() < self.end:
            self.begun.append(None)
            yield dice.choice(self.questions)

    def note(self, what: str, got: Sequence[int] = (), answer: Sequence[int] = ()) -> None:
        self.befell.append(what)
        if got != answer:
            self.wrong.append((what, got, answer))

    def thread(self, seed: int) -> None:
        """Calls of every kind from one thread, one after another."""
        dice = random.Random(seed)
        for asked in self.asks(dice):
            prompt, params, answer = asked.prompt, asked.params, asked.answer
            match dice.randrange(5):
                case 0:
                    self.note("streamed", ids_of(self.engine.stream(prompt, **params)), answer)
                case 1:
                    got, most = list[int](), dice.randint(1, 40)
                    for chunk in self.engine.stream(prompt, **params):
                        got += chunk.token_ids
                        if len(got) >= most:
                            break
                    self.note("streams abandoned", got, answer[: len(got)])
                case kind:
                    timeout = dice.uniform(0, 1) if kind == 2 else None
                    try:
                        rows = self.engine.generate(prompt, timeout=timeout, **params)
                        self.note("answered", rows[0].token_ids, answer)
                    except GenerationTimeout:
                        self.note("timed out")

    async def tasks(self, count: int) -> None:
        await asyncio.gather(*(self._task(random.Random(f"task {seed}")) for seed in range(count)))

    async def _task(self, dice: random.Random) -> None:
        """Calls of every kind from a task; half of them are cancelled, unless they are faster."""
        for asked in self.asks(dice):
            task = asyncio.ensure_future(dice.choice([self._answer, self._stream])(asked))
            await asyncio.wait({task}, timeout=dice.choice([None, dice.uniform(0, 1)]))
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                self.note("cancelled")

    async def _answer(self, asked: Question) -> None:
        rows = await self.engine.agenerate(asked.prompt, **asked.params)
        self.note("answered", rows[0].token_ids, asked.answer)

    async def _stream(self, asked: Question) -> None:
        got: list[int] = []
        async for chunk in self.engine.astream(asked.prompt, **asked.params):
            got += chunk.token_ids
        self.note("streamed", got, asked.answer)


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
    engine: InferenceEngine, questions: list[Question], figures: Figures
) -> None:
    storm = Storm(engine, questions, STORM_SECONDS)
    with ThreadPoolExecutor(THREADS + 1) as threads:
        calls = [threads.submit(storm.thread, seed) for seed in range(THREADS)]
        calls.append(threads.submit(asyncio.run, storm.tasks(TASKS)))
        for call in calls:
            call.result(STORM_SECONDS + 60)
    seen = Counter(storm.befell)
    for what, count in sorted(seen.items()):
        figures(f"{THREADS} threads and {TASKS} tasks, {STORM_SECONDS} s: {what}", count)
    figures("answers in it that differ from those given alone", len(storm.wrong))
    assert storm.wrong == []
    assert len(storm.befell) == len(storm.begun)  # every call came to an end, and to one
    assert min(seen.values()) > 10 and len(seen) == 5
    assert is_idle(engine)
    for asked in questions:
        assert ids_of(engine.stream(asked.prompt, **asked.params)) == asked.answer


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
        figures(f"{REQUESTS} calls one after another: resident memory, {name}", f"{share:+.2%}")
        assert share < GROWTH
    growth = {name: count - before[name] for name, count in after.items()}
    figures("descriptors, threads, files, requests: the growth of each", growth)
    assert max(growth.values()) <= 0
