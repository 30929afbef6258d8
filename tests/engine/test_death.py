"""An engine's death: everybody who waits hears of it, the caller lives, and `restart` helps.

A scheduler is killed from outside, raises by itself, hangs, or does not come up at all.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import re
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from scripts import LONG, QUESTION, SETTINGS, ended, in_flight, script, until
from tiny import tiny_model

from _inf.types import CancelToken
from inf import EngineDeadError, InferenceEngine

Answer = list[list[int]]
HANG_SECONDS = 5.0


@pytest.fixture(scope="module")
def answer(tiny: InferenceEngine) -> Answer:
    """The right one to `QUESTION`."""
    return tiny.generate(**QUESTION).token_ids


# ─── Killed ───


@pytest.fixture(scope="module")
def _mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InferenceEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("mortal")))
        with InferenceEngine(
            model_path=str(tiny_model()), hang_timeout=HANG_SECONDS, rollout=SETTINGS
        ) as engine:
            yield engine


@pytest.fixture
def mortal(_mortal: InferenceEngine) -> InferenceEngine:
    """An engine to be killed; alive again for the next test."""
    if _mortal.rollout.host.death is not None:
        _mortal.restart()
    return _mortal


def test_killed_scheduler_fails_every_call_in_flight_and_later_until_restart(
    mortal: InferenceEngine, answer: Answer
) -> None:
    host, restarts = mortal.rollout.host, mortal.stats()["restarts"]
    with concurrent.futures.ThreadPoolExecutor() as threads:
        calls = [threads.submit(mortal.generate, "One", **LONG, timeout=60) for _ in range(4)]
        assert until(lambda: in_flight(mortal) == 4, 30)
        os.kill(host.children[0].pid, signal.SIGKILL)
        killed = time.monotonic()
        failures = [call.exception(timeout=90) for call in calls]
        assert time.monotonic() - killed < 5
    for failure in failures:
        assert isinstance(failure, EngineDeadError)
        assert f"scheduler 0 (pid {host.children[0].pid}, exit code -9)" in str(failure)
        assert str(host.log) in str(failure)
        assert "restart()" in str(failure)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="exit code -9"):
            mortal.generate("Are you there?")
    with pytest.raises(EngineDeadError, match="exit code -9"):
        asyncio.run(mortal.agenerate("Are you there?"))

    mortal.restart()
    assert mortal.generate(**QUESTION).token_ids == answer
    assert mortal.stats()["restarts"] == restarts + 1


def test_log_of_a_dead_engine_stays_and_is_the_users_alone(mortal: InferenceEngine) -> None:
    host = mortal.rollout.host
    assert stat.S_IMODE(host.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(host.log.stat().st_mode) == 0o600
    os.kill(host.children[0].pid, signal.SIGKILL)
    assert until(lambda: host.death is not None, 5)  # also where nobody waits for an answer
    mortal.shutdown()
    assert list(host.folder.iterdir()) == [host.log]


def test_exception_inside_with_passes_and_leaves_no_child(mortal: InferenceEngine) -> None:
    scheduler = psutil.Process(mortal.rollout.host.children[0].pid)
    with pytest.raises(ZeroDivisionError), mortal:
        raise ZeroDivisionError
    assert not scheduler.is_running()  # no zombie either
    with pytest.raises(EngineDeadError, match="shut down"):
        mortal.generate("Are you there?")


# ─── Hung ───


def test_stopped_scheduler_is_reported_as_hung_and_killed(
    mortal: InferenceEngine, answer: Answer
) -> None:
    scheduler = psutil.Process(mortal.rollout.host.children[0].pid)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        calls = [threads.submit(mortal.generate, "One", **LONG, timeout=60) for _ in range(2)]
        assert until(lambda: in_flight(mortal) == 2, 30)
        scheduler.suspend()
        stopped = time.monotonic()
        failures = [call.exception(timeout=90) for call in calls]
        assert time.monotonic() - stopped < HANG_SECONDS  # not by its silence
    said = rf"The engine hung: scheduler 0 \(pid {scheduler.pid}\) was stopped by a signal"
    for failure in failures:
        assert isinstance(failure, EngineDeadError)
        assert re.match(said, str(failure)) and "restart()" in str(failure)
    with pytest.raises(EngineDeadError, match=said):
        mortal.generate("Are you there?")
    assert until(lambda: not scheduler.is_running(), 5)
    mortal.restart()
    assert mortal.generate(**QUESTION).token_ids == answer


def test_silent_scheduler_is_reported_as_hung_and_its_successor_holds_no_more(
    mortal: InferenceEngine, answer: Answer
) -> None:
    held = open_files_and_threads()
    slow_down(mortal, 2)
    mortal.generate("One", max_tokens=5, ignore_eos=True)  # ten seconds, each batch a sign of life
    slow_down(mortal, 600)
    with pytest.raises(EngineDeadError, match=r"hung: scheduler 0 \(pid \d+\) was silent for \d s"):
        mortal.generate("One")
    mortal.restart()
    assert mortal.generate(**QUESTION).token_ids == answer
    files, threads = open_files_and_threads()
    assert files <= held[0] and threads <= held[1]  # a life leaves nothing to the next


def open_files_and_threads() -> tuple[int, int]:
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), process.num_threads()


def slow_down(engine: InferenceEngine, seconds: float) -> None:
    """Each forward pass begins with so many seconds of sleep."""
    from sglang.srt.managers.io_struct import SlowDownReqInput

    manager = engine.rollout._engine.tokenizer_manager
    engine.rollout.host.run(manager.slow_down(SlowDownReqInput(seconds)), CancelToken())


# ─── By itself ───

CRASH = """
from inf import EngineDeadError
from _inf.types import CancelToken

e = engine()
raw = e.rollout._engine.async_generate(
    input_ids=[[10**6]], sampling_params=[{"max_new_tokens": 4}]  # no such token: it raises
)
try:
    e.rollout.host.run(raw, CancelToken())
except EngineDeadError as failure:
    say("crash", str(failure))
try:
    e.generate("Are you there?")
except EngineDeadError as failure:
    say("later", str(failure))
e.restart()
say("restarted", e.generate(**QUESTION).token_ids)
raise RuntimeError("an unhandled one")
"""


@pytest.fixture(scope="module")
def crash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A script whose scheduler raises; it restarts, and ends by an exception of its own."""
    with script(CRASH, tmp_path_factory.mktemp("crash")) as run:
        report = {name: run.hear(name) for name in ("crash", "later", "restarted")}
        yield report | {"end": ended(run), "tmp": run.tmp}


def test_scheduler_that_raises_is_an_engine_dead_error_with_its_traceback(
    crash: dict[str, Any],
) -> None:
    assert "scheduler 0" in crash["crash"]
    assert "exit code 1" in crash["crash"]
    assert "IndexError" in crash["crash"]
    assert str(crash["tmp"]) in crash["crash"]  # the path of the log
    assert crash["later"] == crash["crash"]


def test_restart_after_a_crash_answers_again(crash: dict[str, Any], answer: Answer) -> None:
    assert crash["restarted"] == answer


def test_unhandled_exception_shows_itself_and_leaves_no_child(crash: dict[str, Any]) -> None:
    end = crash["end"]
    assert end.exit_code == 1
    assert end.err.endswith("RuntimeError: an unhandled one\n")
    assert end.err.count("Traceback") == 1
    assert end.survivors == []


# ─── Starts that fail ───

FAILED = """
import gc, subprocess, threading, time
import psutil
from inf import InferenceError

stranger = subprocess.Popen(["sleep", "300"])

def children():
    found = psutil.Process().children(recursive=True)
    return [p for p in found if p.pid != stranger.pid and "resource_tracker" not in p.cmdline()[-1]]

def failure(**sglang):
    try:
        engine(engine_kwargs={"sglang": sglang})
    except Exception as failure:
        return [isinstance(failure, InferenceError), str(failure)]

def kill():
    while not (found := [p for p in children() if "spawn_main" in " ".join(p.cmdline())]):
        time.sleep(0.05)
    time.sleep(1)
    found[0].kill()

say("in the child", failure(attention_backend="nonsense"))
say("in the parent", failure(quantization="nonsense"))
say("beside the child", failure(speculative_algorithm="nonsense"))
threading.Thread(target=kill).start()
say("killed", failure())
say("children", [p.cmdline() for p in children()])
say("stranger", stranger.poll())
stranger.kill()
gc.collect()
say("collected")
say("after all", engine().generate(**QUESTION).token_ids)
"""


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Four starts that fail, one after the other; then what is left, as far as the script came."""
    names = ["in the child", "in the parent", "beside the child", "killed"]
    names += ["children", "stranger"]
    with script(FAILED, tmp_path_factory.mktemp("failed")) as run:
        report = {name: run.hear(name) for name in names}
        report |= {"tmp": run.tmp, "stderr": run.err, "hung": True}
        with contextlib.suppress(AssertionError):
            run.hear("collected", 10)
            report |= {"hung": False, "after all": run.hear("after all")}
        yield report


@pytest.mark.parametrize("place", ["in the child", "in the parent", "beside the child"])
def test_start_that_sglang_refuses_raises_ours_with_the_cause(
    failed: dict[str, Any], place: str
) -> None:
    ours, message = failed[place]
    assert "nonsense" in message.lower()
    assert ours


def test_start_that_dies_in_the_child_names_its_exit_code_and_log(failed: dict[str, Any]) -> None:
    _, message = failed["in the child"]
    assert "scheduler 0" in message
    assert "exit code 1" in message
    assert re.search(rf"{failed['tmp']}/inf-engine-\w+/engine\.log", message)


def test_scheduler_killed_while_it_starts_is_an_engine_dead_error(failed: dict[str, Any]) -> None:
    ours, message = failed["killed"]
    assert ours
    assert re.search(r"while it started: scheduler 0 \(pid \d+, exit code -9\)", message)


def test_failed_starts_leave_no_child_and_touch_nobody_elses(failed: dict[str, Any]) -> None:
    assert failed["children"] == []
    assert failed["stranger"] is None


def test_failed_starts_print_nothing_beside_their_exceptions(failed: dict[str, Any]) -> None:
    assert failed["stderr"] == ""


def test_garbage_of_failed_starts_can_be_collected_and_the_next_start_works(
    failed: dict[str, Any], answer: Answer
) -> None:
    assert not failed["hung"]  # a ZeroMQ context waits for ever for its unsent messages
    assert failed["after all"] == answer
