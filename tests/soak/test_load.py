"""Everybody at once, for a long time, and thousands of calls one after another: right answers, and
nothing kept that is over."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from _inf.backends.openai.http import httpx
from inf import GenerationTimeout, InferenceEngine
from tests.support.schedulers import in_flight, load
from tests.support.scripts import SETTINGS, until
from tests.support.tiny import tiny_model
from tests.support.trained import loaded

pytestmark = pytest.mark.soak

STORM_SECONDS, THREADS, TASKS = 120, 32, 64
WARM_UP, REQUESTS, GROWTH = 1000, 2000, 0.03
IDLE_SECONDS, END_SECONDS = 30.0, 300.0
CLIENTS, BETWEEN_EVENTS, GROWTH_BYTES = 64, 8.0, 100 * 2**20
TOKENS = 24
KINDS = ["plain", "plain", "stream", "stream", "abandoned"]
SCHEMAS, PROPERTIES, SCHEMA_BYTES = 10_000, 30, 1.5 * 2**30
Ids = list[int]


class Storm:
    """Calls of many threads until it is over. befell: what befell each; wrong: wrong answers."""

    def __init__(self) -> None:
        self.end = time.monotonic() + STORM_SECONDS
        self.befell, self.wrong = list[str](), list[Any]()

    def note(self, what: str, got: Any = None, expected: Any = None) -> None:
        self.befell.append(what)
        if got != expected:
            self.wrong.append((what, got, expected))

    def dice(self, seed: object) -> Iterator[random.Random]:
        """For each call of a caller, until the end."""
        dice = random.Random(str(seed))
        while time.monotonic() < self.end:
            yield dice

    def counted(self) -> Counter[str]:
        assert self.wrong == []
        return Counter(self.befell)


# ─── Calls ───


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """With a private folder for temporary files."""
    folder = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        with InferenceEngine(model_path=str(tiny_model()), rollout=SETTINGS) as engine:
            yield engine


def ids_of(chunks: Any) -> Ids:
    return [token for chunk in chunks for token in chunk.token_ids]


def drawn_ids(dice: random.Random, most: int) -> dict[str, Ids]:
    return {"prompt_token_ids": [dice.randint(5, 380) for _ in range(dice.randint(1, most))]}


def is_idle(engine: InferenceEngine) -> bool:
    """No request is known to the caller's side, none is left in the scheduler."""
    return until(lambda: in_flight(engine) == 0 and load(engine) == (0, 0), IDLE_SECONDS)


def test_answers_in_a_storm_are_those_given_alone(engine):
    """Of 32 threads and 64 tasks: forty calls, of 1 to 400 tokens with answers of 1 to 100."""
    dice, questions = random.Random(0), list[tuple[Any, Any, Ids]]()
    for _ in range(40):
        prompt = drawn_ids(dice, 400)
        how = {"max_tokens": dice.randint(1, 100), "temperature": 0, "ignore_eos": True}
        questions.append((prompt, how, ids_of(engine.stream(prompt, **how))))
    storm = Storm()

    def thread(seed: int) -> None:
        for dice in storm.dice(seed):
            prompt, how, answer = dice.choice(questions)
            kind = dice.randrange(5)
            if kind < 2:
                most = dice.randint(1, 40) if kind else 200
                chunks, got = engine.stream(prompt, **how), Ids()
                while len(got) < most and (chunk := next(chunks, None)):
                    got += chunk.token_ids
                del chunks
                what = "streams abandoned" if kind else "streamed"
                storm.note(what, got, answer[: len(got)] if kind else answer)
                continue
            try:
                timeout = dice.uniform(0, 1) if kind == 2 else None
                rows = engine.generate(prompt, timeout=timeout, **how)
                storm.note("answered", rows[0].token_ids, answer)
            except GenerationTimeout:
                storm.note("timed out")

    async def streamed(prompt: Any, **how: Any) -> Ids:
        return ids_of([chunk async for chunk in engine.astream(prompt, **how)])

    async def answered(prompt: Any, **how: Any) -> Ids:
        return (await engine.agenerate(prompt, **how)).token_ids[0]

    async def task(seed: int) -> None:
        """Half of its calls are cancelled, unless they are faster."""
        for dice in storm.dice(f"task {seed}"):
            prompt, how, answer = dice.choice(questions)
            way = dice.choice([streamed, answered])
            running = asyncio.ensure_future(way(prompt, **how))
            await asyncio.wait({running}, timeout=dice.choice([None, dice.uniform(0, 1)]))
            running.cancel()
            try:
                storm.note(way.__name__, await running, answer)
            except asyncio.CancelledError:
                storm.note("cancelled")

    async def tasks() -> None:
        await asyncio.gather(*map(task, range(TASKS)))

    with ThreadPoolExecutor(THREADS + 1) as threads:
        calls = [threads.submit(thread, seed) for seed in range(THREADS)]
        for each in [*calls, threads.submit(asyncio.run, tasks())]:
            each.result(STORM_SECONDS + 60)
    seen = storm.counted()
    assert min(seen.values()) > 10 and len(seen) == 5
    assert is_idle(engine)
    for prompt, how, answer in questions:
        assert ids_of(engine.stream(prompt, **how)) == answer


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


def test_calls_one_after_another_leave_nothing_behind(engine):
    dice = random.Random(1)

    def ask(count: int) -> None:
        for _ in range(count):
            engine.generate(drawn_ids(dice, 60), max_tokens=dice.randint(1, 12))

    ask(WARM_UP)
    before = held(engine)
    ask(REQUESTS)
    assert is_idle(engine)
    after = held(engine)
    for name in ("caller", "scheduler"):
        share = after.pop(name) / before[name] - 1
        assert share < GROWTH
    growth = {name: count - before[name] for name, count in after.items()}
    assert max(growth.values()) <= 0


# ─── A server ───


class Client:
    """Requests with their streams, some of which it leaves. expected: the ids of each prompt's
    answer with the weights of an even version, and of an odd one."""

    def __init__(self, url: str, storm: Storm, expected: list[list[Ids]]) -> None:
        self.url, self.storm, self.expected = url, storm, expected

    def run(self, seed: int) -> None:
        with httpx.Client(base_url=self.url, timeout=120) as http:
            for dice in self.storm.dice(seed):
                kind, prompt = dice.choice(KINDS), dice.randrange(len(self.expected[0]))
                body = {"prompt": f"Question {prompt}", "max_tokens": TOKENS, "temperature": 0}
                body |= {"ignore_eos": True, "return_token_ids": True, "stream": kind != "plain"}
                most = dice.randint(1, TOKENS - 1) if kind == "abandoned" else TOKENS + 1
                with http.stream("POST", "/completions", json=body) as response:
                    if response.status_code == 503:
                        self.storm.note("503")
                    elif response.status_code != 200:
                        self.storm.note("wrong status", response.read())
                    elif kind == "plain":
                        self.compare(json.loads(response.read()), [], prompt, "answered")
                    else:
                        self.read(response.iter_lines(), prompt, most)
                time.sleep(0.5 if response.status_code == 503 else 0)

    def read(self, lines: Iterator[str], prompt: int, most: int) -> None:
        """most: the tokens after which it leaves."""
        ids = Ids()
        for line in lines:
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                return self.storm.note("streams with an error at their end")
            if event["choices"][0]["finish_reason"]:
                return self.compare(event, ids, prompt, "streams answered")
            ids += event["choices"][0]["token_ids"]
            if len(ids) >= most:
                return self.storm.note("streams abandoned")
        self.storm.note("a stream ended without an answer or an error", ids)

    def compare(self, whole: Any, before: Ids, prompt: int, what: str) -> None:
        [choice] = whole["choices"]
        expected = self.expected[choice["weight_version"] % 2][prompt]
        self.storm.note(what, before + choice["token_ids"], expected)


def test_every_answer_is_right_for_its_weights_or_an_error(mortal):
    """Sixty-four clients, with updates of the weights and kills of the scheduler."""
    models = [loaded(tiny_model(seed=seed)) for seed in (0, 1)]
    asked = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    asked["prompts"] = [{"text": f"Question {number}"} for number in range(16)]
    expected = []
    for version, model in enumerate([*models, models[0]]):
        mortal.update_weights(model, version=version)
        expected.append(mortal.generate(**asked).token_ids)
    with mortal.serve() as server, ThreadPoolExecutor(CLIENTS) as clients:
        storm = Storm()
        client = Client(server.base_url, storm, expected)
        ended = [clients.submit(client.run, number) for number in range(CLIENTS)]
        version, warm_bytes = 0, 0
        for event in itertools.count():
            time.sleep(BETWEEN_EVENTS)
            if time.monotonic() > storm.end:
                break
            if event % 3 < 2:
                version += 1
                assert mortal.update_weights(models[version % 2], version=version) == version
                storm.note("updates of the weights")
                continue
            os.kill(mortal.rollout.host.children[0].pid, signal.SIGKILL)
            storm.note("kills of the scheduler")
            assert until(lambda: mortal.dead, 60)
            mortal.restart()  # the server leaves an engine with updated weights to its owner
            version, memory = 0, psutil.Process().memory_info().rss
            warm_bytes = warm_bytes or memory
        for each in ended:
            each.result(END_SECONDS)
        assert until(lambda: in_flight(mortal) == 0, 5)
    grown = psutil.Process().memory_info().rss - warm_bytes
    mortal.restart()  # the folder's weights, version 0
    befell = storm.counted()
    assert befell["answered"] > 200 and befell["streams answered"] > 200
    assert befell["kills of the scheduler"] >= 2 and befell["updates of the weights"] >= 4
    assert grown < GROWTH_BYTES


def test_ten_thousand_schemas_leave_the_memory_bounded(tiny):
    def memory() -> int:
        """Of this process, which serves, and of the engine's."""
        me = psutil.Process()
        return sum(each.memory_info().rss for each in [me, *me.children(recursive=True)])

    def begins(number: int) -> bool:
        """An answer begins by a schema of its own."""
        named = {f"name_{number}_{n}": {"type": ["string", "integer"]} for n in range(PROPERTIES)}
        schema = {"type": "object", "properties": named, "required": list(named)}
        body = {"prompt": "Hi", "max_tokens": 4, "json_schema": schema}
        response = http.post("/completions", json=body)
        assert response.status_code == 200, response.text
        return bool(response.json()["choices"][0]["text"].startswith('{"'))

    with tiny.serve() as server, ThreadPoolExecutor(8) as clients:
        with httpx.Client(base_url=server.base_url, timeout=300) as http:
            assert all(clients.map(begins, range(-100, 0)))
            before = memory()
            assert all(clients.map(begins, range(SCHEMAS)))
            grown = memory() - before
    assert grown < SCHEMA_BYTES
