"""An engine killed and stopped at random moments, under everything that calls it at once.

One engine in this process, on the model that calls tools; each harm ends with `restart()`.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from inf import ConfigError, EngineDeadError, InferenceEngine
from tests.support.schedulers import in_flight, open_files_and_threads
from tests.support.scripts import SETTINGS, alive, command_line, descendants, until
from tests.support.tool_calling import TOOL_MODEL, answer, calculator, question

pytestmark = pytest.mark.soak

SEED = 20261121
HANG = 4.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    copy = tmp_path_factory.mktemp("models") / "tool_model"
    shutil.copytree(TOOL_MODEL, copy)
    return copy


@pytest.fixture(scope="module")
def others():
    """Of the session's engines."""
    return processes()


@pytest.fixture(scope="module")
def mortal(folder, others):
    rollout = SETTINGS | {"prompt_length": 1024, "do_sample": False}
    with InferenceEngine(model_path=str(folder), hang_timeout=HANG, rollout=rollout) as engine:
        yield engine


# ─── The mix ───


def calculated(expression: str) -> str:
    time.sleep(random.uniform(0, 0.3))
    return {"12 * 7": "84", "12 + 7": "19"}[expression]


TOOLS = [calculator(calculated)]


def right(engine: InferenceEngine) -> bool:
    """Whether it answers, and with tools."""
    asked = engine.generate([question("12 * 7"), question("12 + 7")], tools=TOOLS)
    return asked.completions == [answer("84"), answer("19")]


def tokens(most: int) -> dict[str, Any]:
    return {"max_tokens": random.randint(5, most), "ignore_eos": True}


async def async_calls(engine: InferenceEngine) -> None:
    async def astream() -> None:
        async for _ in engine.astream("Two", **tokens(400)):
            pass

    await asyncio.gather(astream(), *(engine.agenerate("Two") for _ in range(3)))


MIX: list[Callable[[InferenceEngine], object]] = [
    *[lambda engine: engine.generate(["One"] * 8, **tokens(400))] * 2,
    *[lambda engine: [*engine.stream("One", **tokens(900))]] * 3,
    *[right] * 2,
    lambda engine: engine.get_logprobs(["One"] * 4, ["two three four"] * 4),
    lambda engine: asyncio.run(async_calls(engine)),
]


def harmed(engine: InferenceEngine, harm: Callable[[], object], wait: float) -> float:
    """Do `harm` to the engine `wait` seconds into a running mix. Every call must end in an
    `EngineDeadError`. The seconds until the last one had."""

    def until_it_fails(call: Callable[[InferenceEngine], object]) -> tuple[float, float]:
        while True:
            begun = time.monotonic()
            try:
                call(engine)
            except EngineDeadError:
                return begun, time.monotonic()

    with ThreadPoolExecutor(len(MIX)) as threads:
        calls = [threads.submit(until_it_fails, call) for call in MIX]
        assert until(lambda: in_flight(engine) > 20, 60)
        time.sleep(wait)
        done = time.monotonic()
        harm()
        in_time = [end for begun, end in (call.result(60) for call in calls) if begun < done]
    return max(in_time) - done


def death(engine: InferenceEngine) -> str:
    """What calls are told."""
    with pytest.raises(EngineDeadError) as caught:
        engine.generate("Are you there?")
    return str(caught.value)


def processes() -> set[psutil.Process]:
    found = alive(descendants(psutil.Process()))
    return {process for process in found if "resource_tracker" not in command_line(process)}


def scheduler(engine: InferenceEngine) -> psutil.Process:
    return psutil.Process(engine.rollout.host.children[0].pid)


# ─── Harms ───

Harm = Callable[[InferenceEngine], object]
# By name: what is done, how often, the most seconds to the last call's end, and what is told then.
HARMS: dict[str, tuple[Harm, int, float, str]] = {
    "SIGKILL": (lambda e: scheduler(e).kill(), 12, 5.0, r"scheduler 0 \(pid {}, exit code -9\)"),
    "SIGSTOP": (
        lambda e: scheduler(e).suspend(),
        *(3, 10.0, r"hung: scheduler 0 \(pid {}\) was stopped by a signal"),
    ),
}


@pytest.mark.parametrize("name", HARMS)
def test_harm_ends_every_call_in_time_and_restart_answers_and_leaves_nothing(mortal, others, name):
    harm, times, most, told = HARMS[name]
    chance = random.Random(SEED)
    random.seed(SEED)
    slowest, left, held = 0.0, 0, []
    for _ in range(times):
        child = scheduler(mortal)
        seconds = harmed(mortal, lambda: harm(mortal), chance.uniform(0.0, 3.0))
        slowest = max(slowest, seconds)
        assert re.search(told.format(child.pid), death(mortal))
        assert not child.is_running()
        mortal.restart()
        assert right(mortal)
        own = {scheduler(mortal), psutil.Process(mortal.rollout.host.fork_server.pid())}
        left += len(processes() - others - own)
        held.append(open_files_and_threads())
    assert slowest < most and left == 0
    # What each restart leaves open would be as many more.
    assert all(
        last < first + max(1, times - 1) for first, last in zip(held[0], held[-1], strict=True)
    )


def test_model_folder_that_vanishes_is_missed_by_restart_only(mortal, others, folder):
    hidden = folder.with_name("hidden")
    folder.rename(hidden)
    assert right(mortal)
    with pytest.raises(ConfigError, match=f"nothing at {folder}"):
        mortal.restart()
    assert "shut down" in death(mortal)
    assert processes() - others == set()
    hidden.rename(folder)
    mortal.restart()
    assert right(mortal)
