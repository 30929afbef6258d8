"""An engine killed, stopped and silenced at random moments, under everything that calls it at once.

One engine in this process, on the model that calls tools; each harm ends with `restart()`.
"""

from __future__ import annotations

import asyncio
import functools
import queue
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from inf import ConfigError, EngineDeadError, InferenceEngine
from tests.support.figures import Figures
from tests.support.schedulers import in_flight, open_files_and_threads, slow_down
from tests.support.scripts import SETTINGS, alive, command_line, descendants, script, until
from tests.support.tool_calling import TOOL_MODEL, answer, calculator, question

pytestmark = pytest.mark.soak

SEED = 20261121
END_SECONDS = 5.0  # what the requirement gives a call in flight after a kill
HANG = 4.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("models") / "tool_model"
    shutil.copytree(TOOL_MODEL, copy)
    return copy


@pytest.fixture(scope="module")
def others() -> set[psutil.Process]:
    """Of the session's engines."""
    return processes()


@pytest.fixture(scope="module")
def mortal(folder: Path, others: set[psutil.Process]) -> Iterator[InferenceEngine]:
    rollout = SETTINGS | {"prompt_length": 1024, "do_sample": False}
    with InferenceEngine(model_path=str(folder), hang_timeout=HANG, rollout=rollout) as engine:
        yield engine


# ─── The mix ───


def calculated(expression: str) -> str:
    time.sleep(random.uniform(0, 0.3))
    return {"12 * 7": "84", "12 + 7": "19"}[expression]


TOOLS = [calculator(calculated)]


def batch(engine: InferenceEngine) -> None:
    lengths = [random.randint(5, 400) for _ in range(8)]
    engine.generate(["One"] * 8, max_tokens=lengths, ignore_eos=True)


def stream(engine: InferenceEngine) -> None:
    for _ in engine.stream("One", max_tokens=random.randint(5, 900), ignore_eos=True):
        pass


def tool_rows(engine: InferenceEngine) -> None:
    assert right(engine)


def scores(engine: InferenceEngine) -> None:
    engine.get_logprobs(["One"] * 4, ["two three four"] * 4)


def async_calls(engine: InferenceEngine) -> None:
    async def astream() -> None:
        async for _ in engine.astream("Two", max_tokens=random.randint(5, 400), ignore_eos=True):
            pass

    async def together() -> None:
        await asyncio.gather(astream(), *(engine.agenerate("Two") for _ in range(3)))

    asyncio.run(together())


MIX = [batch, batch, stream, stream, stream, tool_rows, tool_rows, scores, async_calls]


def harmed(engine: InferenceEngine, harm: Callable[[], None], wait: float) -> tuple[float, int]:
    """Do `harm` to the engine `wait` seconds into a running mix. Every call must end in an
    `EngineDeadError`. The seconds until the last one had, and how many were in flight."""
    ends = queue.SimpleQueue[tuple[float, float, BaseException]]()

    def until_it_fails(call: Callable[[InferenceEngine], None]) -> None:
        while True:
            begun = time.monotonic()
            try:
                call(engine)
            except BaseException as failure:
                ends.put((begun, time.monotonic(), failure))
                return

    for call in MIX:
        threading.Thread(target=until_it_fails, args=(call,), daemon=True).start()
    assert until(lambda: in_flight(engine) > 20, 60)
    time.sleep(wait)
    done = time.monotonic()
    harm()
    every = [ends.get(timeout=60) for _ in MIX]
    for *_, failure in every:
        assert isinstance(failure, EngineDeadError), failure
    in_time = [ended for begun, ended, _ in every if begun < done]
    return max(in_time) - done, len(in_time)


def death(engine: InferenceEngine) -> str:
    """What calls are told."""
    with pytest.raises(EngineDeadError) as caught:
        engine.generate("Are you there?")
    return str(caught.value)


def right(engine: InferenceEngine) -> bool:
    """Whether it answers, and with tools."""
    asked = engine.generate([question("12 * 7"), question("12 + 7")], tools=TOOLS)
    return asked.completions == [answer("84"), answer("19")]


def processes() -> set[psutil.Process]:
    found = alive(descendants(psutil.Process()))
    return {process for process in found if "resource_tracker" not in command_line(process)}


def own(engine: InferenceEngine) -> set[psutil.Process]:
    """Its scheduler, and the process from which that is forked."""
    host = engine.rollout.host
    return {psutil.Process(pid) for pid in (host.children[0].pid, host.fork_server.pid())}


# ─── Harms ───


@pytest.mark.parametrize(
    ("number", "times", "most"), [(signal.SIGKILL, 12, END_SECONDS), (signal.SIGSTOP, 3, 10.0)]
)
def test_signal_ends_every_call_in_time_and_restart_answers_and_leaves_nothing(
    mortal: InferenceEngine,
    others: set[psutil.Process],
    figures: Figures,
    number: signal.Signals,
    times: int,
    most: float,
) -> None:
    chance = random.Random(SEED)
    random.seed(SEED)
    slowest, in_flight_then, left, held = 0.0, 0, 0, []
    for _ in range(times):
        scheduler = psutil.Process(mortal.rollout.host.children[0].pid)
        harm = functools.partial(scheduler.send_signal, number)
        seconds, calls = harmed(mortal, harm, chance.uniform(0.0, 3.0))
        slowest, in_flight_then = max(slowest, seconds), in_flight_then + calls
        told = death(mortal)
        if number == signal.SIGKILL:
            assert f"scheduler 0 (pid {scheduler.pid}, exit code -9)" in told
        else:
            assert f"hung: scheduler 0 (pid {scheduler.pid}) was stopped by a signal" in told
        assert not scheduler.is_running()
        mortal.restart()
        assert right(mortal)
        left += len(processes() - others - own(mortal))
        held.append(open_files_and_threads())
    figures(f"{number.name} to the scheduler under a mix of calls", times)
    figures("calls in flight at it, all ended in EngineDeadError", in_flight_then)
    figures("the slowest of them ended after, seconds", f"{slowest:.2f}")
    figures(f"children left after {times} restarts", left)
    figures("open files, threads: after the first, the last", (held[0], held[-1]))
    assert slowest < most and left == 0
    # What each restart leaves open would be as many more.
    assert all(last < first + times - 1 for first, last in zip(held[0], held[-1], strict=True))


def test_slow_scheduler_and_idle_one_are_not_hung_and_a_silent_one_is(
    mortal: InferenceEngine, figures: Figures
) -> None:
    slow_down(mortal, HANG / 2)
    mortal.generate("One", max_tokens=5, ignore_eos=True)  # two and a half limits, no message
    slow_down(mortal, 600)
    time.sleep(2 * HANG)
    assert mortal.rollout.host.death is None
    begun = time.monotonic()
    with pytest.raises(EngineDeadError, match=r"hung: scheduler 0 \(pid \d+\) was silent for"):
        mortal.generate("One")
    seconds = time.monotonic() - begun
    figures(f"a silent scheduler, hang_timeout {HANG}, reported after", f"{seconds:.2f}")
    assert HANG <= seconds < HANG + 10
    mortal.restart()
    assert right(mortal)


def test_model_folder_that_vanishes_is_missed_by_restart_only(
    mortal: InferenceEngine, others: set[psutil.Process], folder: Path
) -> None:
    hidden = folder.with_name("hidden")
    folder.rename(hidden)
    copy = hidden.with_name("copy")
    shutil.copytree(hidden, copy)
    shutil.rmtree(hidden)
    assert right(mortal)
    with pytest.raises(ConfigError, match=f"nothing at {folder}"):
        mortal.restart()
    assert "shut down" in death(mortal)
    assert processes() - others == set()
    copy.rename(folder)
    mortal.restart()
    assert right(mortal)


# ─── Ctrl-Z ───

SUSPENDED = """
import threading
e = engine()
say("ready")
answers = []
thread = threading.Thread(target=lambda: answers.append(e.generate("One", **LONG)))
thread.start()
say("at work")
thread.join()
say("tokens", len(answers[0].token_ids[0]))
"""


def test_whole_process_group_stopped_and_continued_is_no_hang(tmp_path: Path) -> None:
    with script(SUSPENDED, tmp_path) as run:
        run.hear("ready")
        run.hear("at work")
        for _ in range(3):
            time.sleep(0.5)
            run.send_group(signal.SIGSTOP)
            time.sleep(5)
            run.send_group(signal.SIGCONT)
        assert run.hear("tokens") == 3900
