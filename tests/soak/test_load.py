"""Everybody at once, for a long time, and 2,000 calls one after another: right answers, and nothing
kept that is over."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import random
import statistics
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
ROWS, CHATS = 1000, 8
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
    """A call, and its answer when no other call runs."""

    call: dict[str, Any]
    answer: list[int]


@pytest.fixture(scope="module")
def questions(engine: InferenceEngine) -> list[Question]:
    """Forty prompts of 1 to 400 tokens, answers of 1 to 100."""
    dice = random.Random(0)
    sizes = [(dice.randint(1, 400), dice.randint(1, 100)) for _ in range(40)]
    calls: list[dict[str, Any]] = [
        {
            "prompts": {"prompt_token_ids": [dice.randint(5, 380) for _ in range(prompt)]},
            "max_tokens": answer,
            "temperature": 0,
            "ignore_eos": True,
        }
        for prompt, answer in sizes
    ]
    return [Question(call, engine.generate(**call).token_ids[0]) for call in calls]


class Storm:
    """What befell each call, by name; a call that is not answered right is under `wrong`."""

    def __init__(self, engine: InferenceEngine, questions: list[Question], seconds: float) -> None:
        self.engine, self.questions = engine, questions
        self.end = time.monotonic() + seconds
        self.befell: Counter[str] = Counter()
        self.wrong: list[tuple[str, Sequence[int], Sequence[int]]] = []
        self._lock = threading.Lock()

    def note(
        self, what: str, got: list[int] | None = None, answer: list[int] | None = None
    ) -> None:
        with self._lock:
            self.befell[what] += 1
            if got != answer:
                self.wrong.append((what, got or [], answer or []))

    def thread(self, seed: int) -> None:
        """Calls of every kind from one thread, one after another."""
        dice = random.Random(seed)
        kinds = [self._generate, self._generate, self._stream, self._abandon, self._time_out]
        while time.monotonic() < self.end:
            self.note("begun")
            dice.choice(kinds)(dice.choice(self.questions), dice)

    def _generate(self, question: Question, dice: random.Random) -> None:
        (got,) = self.engine.generate(**question.call).token_ids
        self.note("answered", got, question.answer)

    def _stream(self, question: Question, dice: random.Random) -> None:
        chunks = self.engine.stream(**_alone(question))
        got = [token for chunk in chunks for token in chunk.token_ids]
        self.note("streamed", got, question.answer)

    def _abandon(self, question: Question, dice: random.Random) -> None:
        got: list[int] = []
        chunks = self.engine.stream(**_alone(question))
        for chunk in chunks:
            got += chunk.token_ids
            if len(got) >= dice.randint(1, 40):
                break
        self.note("streams abandoned", got, question.answer[: len(got)])

    def _time_out(self, question: Question, dice: random.Random) -> None:
        try:
            (got,) = self.engine.generate(**question.call, timeout=dice.uniform(0, 1)).token_ids
            self.note("answered", got, question.answer)
        except GenerationTimeout:
            self.note("timed out")

    async def tasks(self, count: int) -> None:
        await asyncio.gather(*(self._task(random.Random(f"task {seed}")) for seed in range(count)))

    async def _task(self, dice: random.Random) -> None:
        kinds = [self._agenerate, self._agenerate, self._cancel, self._astream, self._acancel]
        while time.monotonic() < self.end:
            self.note("begun")
            await dice.choice(kinds)(dice.choice(self.questions), dice)

    async def _agenerate(self, question: Question, dice: random.Random) -> None:
        (got,) = (await self.engine.agenerate(**question.call)).token_ids
        self.note("answered", got, question.answer)

    async def _astream(self, question: Question, dice: random.Random) -> None:
        got: list[int] = []
        async for chunk in self.engine.astream(**_alone(question)):
            got += chunk.token_ids
        self.note("streamed", got, question.answer)

    async def _cancel(self, question: Question, dice: random.Random) -> None:
        await self._cancelled(self._agenerate(question, dice), dice)

    async def _acancel(self, question: Question, dice: random.Random) -> None:
        await self._cancelled(self._astream(question, dice), dice)

    async def _cancelled(self, work: Any, dice: random.Random) -> None:
        """Unless it was faster."""
        task = asyncio.ensure_future(work)
        await asyncio.wait({task}, timeout=dice.uniform(0, 1))
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            self.note("cancelled")


def _alone(question: Question) -> dict[str, Any]:
    call = dict(question.call)
    return {"prompt": call.pop("prompts"), **call}


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
    begun, seen = storm.befell.pop("begun"), storm.befell
    for what, count in sorted(seen.items()):
        figures("load", f"{THREADS} threads and {TASKS} tasks, {STORM_SECONDS} s: {what}", count)
    figures("load", "answers in it that differ from those given alone", len(storm.wrong))
    assert storm.wrong == []
    assert sum(seen.values()) == begun  # every call came to an end, and to one
    assert min(seen.values()) > 10 and len(seen) == 5
    assert is_idle(engine)
    for question in questions:
        assert engine.generate(**question.call).token_ids == [question.answer]


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


def test_chat_after_a_thousand_prompts_does_not_wait_for_them(
    engine: InferenceEngine, figures: Figures
) -> None:
    at_once = engine.config.rollout.max_num_seqs
    dice = random.Random(2)
    batch = {"prompts": ["One"] * ROWS, "max_tokens": [dice.randint(40, 120) for _ in range(ROWS)]}

    def wait() -> float:
        begun = time.monotonic()
        engine.generate("Two", max_tokens=8, ignore_eos=True)
        return 1000 * (time.monotonic() - begun)

    alone = statistics.median(wait() for _ in range(CHATS))
    waits, ended, running = [], [], []
    with ThreadPoolExecutor(1) as threads:
        begun = time.monotonic()
        answers = threads.submit(engine.generate, **batch, ignore_eos=True)
        assert until(lambda: in_flight(engine) == ROWS, 30)
        for _ in range(CHATS):
            rows = in_flight(engine)
            waits.append(wait())
            ended.append(rows - in_flight(engine))
            running.append(load(engine)[0])
        left = in_flight(engine)
        lengths = [len(ids) for ids in answers.result(300).token_ids]
        whole = time.monotonic() - begun
    middle = statistics.median(waits)
    figures("load", "a chat request's wait alone, ms", round(alone))
    figures("load", f"after a batch of {ROWS} rows ({whole:.0f} s), ms", round(middle))
    figures("load", "the longest of them, ms", round(max(waits)))
    figures("load", "with the batch / alone", f"{middle / alone:.1f}")
    figures("load", "rows of the batch that ended meanwhile, at most", max(ended))
    figures("load", f"rows running at once, at most (max_num_seqs {at_once})", max(running))
    assert lengths == batch["max_tokens"]
    assert left > 0 and max(ended) <= 2 * at_once and max(running) <= at_once
