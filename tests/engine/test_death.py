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
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from scripts import HANG_SECONDS, LONG, QUESTION, ended, in_flight, script, until
from tiny import tiny_model
from transformers import AutoModelForCausalLM

from _inf.backends.verl import launch
from _inf.types import CancelToken
from inf import EngineDeadError, InferenceEngine

Answer = list[list[int]]


@pytest.fixture(scope="module")
def answer(tiny: InferenceEngine) -> Answer:
    """The right one to `QUESTION`."""
    return tiny.generate(**QUESTION).token_ids


# ─── Killed ───


@pytest.fixture(scope="module")
def other_weights() -> Any:
    """A model of the same shape as the folder's."""
    return AutoModelForCausalLM.from_pretrained(tiny_model(seed=1), dtype=torch.float32)


def test_killed_scheduler_fails_every_call_in_flight_and_later_until_restart(
    mortal: InferenceEngine, answer: Answer, other_weights: Any
) -> None:
    host, restarts = mortal.rollout.host, mortal.stats()["restarts"]
    mortal.update_weights(other_weights)
    assert mortal.generate(**QUESTION).token_ids != answer
    chunks = mortal.stream("One", **LONG)
    next(chunks)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        calls = [threads.submit(mortal.generate, "One", **LONG, timeout=60) for _ in range(4)]
        assert until(lambda: in_flight(mortal) == 5, 30)
        os.kill(host.children[0].pid, signal.SIGKILL)
        killed = time.monotonic()
        failures = [call.exception(timeout=90) for call in calls]
        assert time.monotonic() - killed < 5
    for failure in failures:
        assert isinstance(failure, EngineDeadError)
        assert f"scheduler 0 (pid {host.children[0].pid}, exit code -9)" in str(failure)
        assert str(host.log) in str(failure)
        assert "restart()" in str(failure)
    with pytest.raises(EngineDeadError, match="exit code -9"):
        list(chunks)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="exit code -9"):
            mortal.generate("Are you there?")
    with pytest.raises(EngineDeadError, match="exit code -9"):
        asyncio.run(mortal.agenerate("Are you there?"))

    mortal.restart()
    output = mortal.generate(**QUESTION)
    assert output.token_ids == answer  # the folder's weights again
    assert output.metadata[0]["weight_version"] == 0
    assert mortal.stats()["restarts"] == restarts + 1


def test_killed_fork_server_takes_the_scheduler_along_and_restart_brings_both_back(
    mortal: InferenceEngine, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_forks", None)  # the other engines of this process keep theirs
    mortal.restart()
    server = mortal.rollout.host.fork_server
    scheduler = psutil.Process(mortal.rollout.host.children[0].pid)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        call = threads.submit(mortal.generate, "One", **LONG, timeout=60)
        assert until(lambda: in_flight(mortal) == 1, 30)
        os.kill(server.pid(), signal.SIGKILL)
        failure = call.exception(timeout=30)
    assert isinstance(failure, EngineDeadError) and "scheduler 0" in str(failure)
    assert until(lambda: not scheduler.is_running(), 5)
    mortal.restart()
    assert mortal.generate(**QUESTION).token_ids == answer


# ─── Hung ───


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
    # An engine that is not cleaned up keeps four files and three threads for each process group.
    assert files <= held[0] + 2 and threads <= held[1] + 2


def open_files_and_threads() -> tuple[int, int]:
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), process.num_threads()


def slow_down(engine: InferenceEngine, seconds: float) -> None:
    """Each forward pass begins with so many seconds of sleep."""
    from sglang.srt.managers.io_struct import SlowDownReqInput

    manager = engine.rollout._engine.tokenizer_manager
    engine.rollout.host.run(manager.slow_down(SlowDownReqInput(seconds)), CancelToken())


def test_stopped_scheduler_is_reported_as_hung_and_killed(mortal: InferenceEngine) -> None:
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


# ─── Starts that fail, and a scheduler that raises ───

TROUBLED = """
import gc, subprocess, threading, time, unittest.mock
import psutil
from inf import EngineDeadError, InferenceError
from _inf.runtime.fork_server import ForkedProcess
from _inf.types import CancelToken

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

def start_and_kill(process, start=ForkedProcess.start):
    start(process)
    process.kill()

say("in the child", failure(attention_backend="nonsense"))
say("in the parent", failure(quantization="nonsense"))
say("beside the child", failure(speculative_algorithm="nonsense"))
threading.Thread(target=kill).start()
say("killed importing", failure())
with unittest.mock.patch.object(ForkedProcess, "start", start_and_kill):
    say("killed", failure())
say("children", [p.cmdline() for p in children()])
say("stranger", stranger.poll())
stranger.kill()
gc.collect()
say("collected")
e = engine()
say("after all", e.generate(**QUESTION).token_ids)
raw = e.rollout._engine.async_generate(
    input_ids=[[10**6]], sampling_params=[{"max_new_tokens": 4}]  # no such token: it raises
)
for name, call in {
    "crash": lambda: e.rollout.host.run(raw, CancelToken()),
    "later": lambda: e.generate("Are you there?"),
}.items():
    try:
        call()
    except EngineDeadError as failure:
        say(name, str(failure))
e.restart()
say("restarted", e.generate(**QUESTION).token_ids)
raise RuntimeError("an unhandled one")
"""


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Five starts that fail, what is left of them, and a sixth whose scheduler raises; it
    restarts, and ends by an exception of the script's own. Told as far as the script came."""
    names = ["in the child", "in the parent", "beside the child", "killed importing", "killed"]
    names += ["children", "stranger"]
    with script(TROUBLED, tmp_path_factory.mktemp("troubled")) as run:
        report = {name: run.hear(name) for name in names}
        report |= {"tmp": run.tmp, "stderr": run.err, "hung": True}
        with contextlib.suppress(AssertionError):
            run.hear("collected", 10)
            report["hung"] = False
        if not report["hung"]:
            later = ("after all", "crash", "later", "restarted")
            report |= {name: run.hear(name) for name in later}
            report["end"] = ended(run)
        yield report


@pytest.mark.parametrize("place", ["in the child", "in the parent", "beside the child"])
def test_start_that_sglang_refuses_raises_ours_with_the_cause(
    troubled: dict[str, Any], place: str
) -> None:
    ours, message = troubled[place]
    assert "nonsense" in message.lower()
    assert ours


def test_start_that_dies_in_the_child_names_its_exit_code_and_log(troubled: dict[str, Any]) -> None:
    _, message = troubled["in the child"]
    assert "scheduler 0" in message
    assert "exit code 1" in message
    assert re.search(rf"{troubled['tmp']}/inf-engine-\w+/engine\.log", message)


@pytest.mark.parametrize(
    ("moment", "process"), [("killed importing", "fork server"), ("killed", "scheduler 0")]
)
def test_process_killed_while_it_starts_is_an_engine_dead_error(
    troubled: dict[str, Any], moment: str, process: str
) -> None:
    ours, message = troubled[moment]
    assert ours
    assert re.search(rf"while it started: {process} \(pid \d+, exit code -9\)", message)


def test_failed_starts_leave_no_child_and_touch_no_other_process(troubled: dict[str, Any]) -> None:
    assert troubled["children"] == []
    assert troubled["stranger"] is None


def test_failed_starts_print_nothing_beside_their_exceptions(troubled: dict[str, Any]) -> None:
    assert troubled["stderr"] == ""


def test_garbage_of_failed_starts_can_be_collected_and_the_next_start_works(
    troubled: dict[str, Any], answer: Answer
) -> None:
    assert not troubled["hung"]  # a ZeroMQ context waits for ever for its unsent messages
    assert troubled["after all"] == answer


def test_scheduler_that_raises_is_an_engine_dead_error_with_its_traceback(
    troubled: dict[str, Any],
) -> None:
    assert "scheduler 0" in troubled["crash"]
    assert "exit code 1" in troubled["crash"]
    assert "IndexError" in troubled["crash"]
    assert str(troubled["tmp"]) in troubled["crash"]  # the path of the log
    assert troubled["later"] == troubled["crash"]


def test_restart_after_a_crash_answers_again(troubled: dict[str, Any], answer: Answer) -> None:
    assert troubled["restarted"] == answer


def test_unhandled_exception_shows_itself_and_leaves_no_child(troubled: dict[str, Any]) -> None:
    end = troubled["end"]
    assert end.exit_code == 1
    assert end.err.endswith("RuntimeError: an unhandled one\n")
    assert end.err.count("Traceback") == 1
    assert end.survivors == []
