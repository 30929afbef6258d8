"""An engine's death: everybody who waits hears of it, the caller lives, and `restart` helps.

A scheduler is killed from outside, or hangs. One that raises, and starts that fail: see
`test_failed_starts.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import re
import signal
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from _inf.backends.verl import launch_sglang
from inf import EngineDeadError, InferenceEngine
from tests.support.schedulers import in_flight, open_files_and_threads, slow_down
from tests.support.scripts import GONE_SECONDS, LONG, QUESTION, alive, until
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.verl

# ─── Killed ───


@pytest.fixture(scope="module")
def other_weights() -> Any:
    """A model of the same shape as the folder's."""
    return AutoModelForCausalLM.from_pretrained(tiny_model(seed=1), dtype=torch.float32)


def test_killed_scheduler_fails_every_call_in_flight_and_later_until_restart(
    mortal: InferenceEngine, answer: list[list[int]], other_weights: Any
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
        failures = [call.exception(timeout=90) for call in calls]
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

    assert f"weight version {mortal.weight_version}), dead" in repr(mortal)
    mortal.restart()
    assert repr(mortal).endswith("(sglang, cpu, weight version 0)>")
    output = mortal.generate(**QUESTION)
    assert output.token_ids == answer  # the folder's weights again
    assert output.metadata[0]["weight_version"] == 0
    assert mortal.stats()["restarts"] == restarts + 1


@pytest.mark.slow
def test_killed_fork_server_takes_the_scheduler_along_and_restart_brings_both_back(
    mortal: InferenceEngine, answer: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The other engines of this process keep theirs.
    monkeypatch.setattr(launch_sglang.FORKS, "_newest", None)
    mortal.restart()
    server = mortal.rollout.host.fork_server
    scheduler = psutil.Process(mortal.rollout.host.children[0].pid)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        call = threads.submit(mortal.generate, "One", **LONG, timeout=60)
        assert until(lambda: in_flight(mortal) == 1, 30)
        os.kill(server.pid(), signal.SIGKILL)
        failure = call.exception(timeout=30)
    assert isinstance(failure, EngineDeadError) and "scheduler 0" in str(failure)
    assert until(lambda: not alive({scheduler}), GONE_SECONDS)
    mortal.restart()
    assert mortal.generate(**QUESTION).token_ids == answer


# ─── Hung ───


@pytest.mark.slow
def test_silent_scheduler_is_reported_as_hung_and_its_successor_holds_no_more(
    mortal: InferenceEngine, answer: list[list[int]]
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


def test_stopped_scheduler_is_reported_as_hung_and_killed(mortal: InferenceEngine) -> None:
    scheduler = psutil.Process(mortal.rollout.host.children[0].pid)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        calls = [threads.submit(mortal.generate, "One", **LONG, timeout=60) for _ in range(2)]
        assert until(lambda: in_flight(mortal) == 2, 30)
        scheduler.suspend()
        failures = [call.exception(timeout=90) for call in calls]
    # Found by its state: silence has other words.
    said = rf"The engine hung: scheduler 0 \(pid {scheduler.pid}\) was stopped by a signal"
    for failure in failures:
        assert isinstance(failure, EngineDeadError)
        assert re.match(said, str(failure)) and "restart()" in str(failure)
    with pytest.raises(EngineDeadError, match=said):
        mortal.generate("Are you there?")
    assert until(lambda: not alive({scheduler}), GONE_SECONDS)


def test_segmentation_fault_ends_the_scheduler_without_another_library_in_between(
    mortal: InferenceEngine,
) -> None:
    """tvm-ffi's handler would print a title of its own, and could wait without end for memory."""
    host = mortal.rollout.host
    os.kill(host.children[0].pid, signal.SIGSEGV)
    with pytest.raises(EngineDeadError, match="exit code -11"):
        mortal.generate("One", **LONG, timeout=60)
    log = host.log.read_text()
    assert "Fatal Python error: Segmentation fault" in log and "Segfault encountered" not in log
    mortal.restart()


# ─── Under an agent loop ───


def test_death_reaches_the_caller_of_an_agent_loop_that_catches_everything(
    mortal: InferenceEngine, answer: list[list[int]]
) -> None:
    from tests.support import agent_loops  # it imports verl's, which takes seconds

    rows: Any = {"agent_loop": agent_loops.CatchesAll, "agent_kwargs": {"index": 1}}
    with concurrent.futures.ThreadPoolExecutor() as threads:
        call = threads.submit(mortal.generate, ["One", "Two"], **rows, **LONG, timeout=60)
        assert until(lambda: in_flight(mortal) == 2, 30)
        os.kill(mortal.rollout.host.children[0].pid, signal.SIGKILL)
        failure = call.exception(timeout=30)
    assert isinstance(failure, EngineDeadError) and "exit code -9" in str(failure)
    mortal.restart()
    again = mortal.generate(**QUESTION, agent_loop="single_turn_agent")
    assert again.token_ids == answer
