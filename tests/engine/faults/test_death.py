"""An engine's death: everybody who waits hears of it, the caller lives, and `restart` helps.

A scheduler is killed from outside, or hangs. One that raises, and starts that fail: see
`test_failed_starts.py`.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from _inf.backends.verl import launch_sglang
from inf import EngineDeadError, InferenceEngine
from tests.support.running import begun, running
from tests.support.schedulers import in_flight, open_files_and_threads, slow_down
from tests.support.scripts import GONE_SECONDS, HANG_SECONDS, LONG, QUESTION, alive, until
from tests.support.tiny import tiny_model
from tests.support.trained import loaded

pytestmark = pytest.mark.verl


def scheduler(engine: InferenceEngine) -> psutil.Process:
    return psutil.Process(engine.rollout.host.children[0].pid)


def failures(
    engine: InferenceEngine, act: Callable[[], Any], *prompts: str, **asked: Any
) -> list[str]:
    """What calls in flight raise when something happens to their engine."""
    prompt, others = [*prompts] or "One", in_flight(engine)
    calls = [begun(lambda: engine.generate(prompt, **LONG, **asked, timeout=60)) for _ in range(2)]
    assert until(lambda: in_flight(engine) == others + 2 * max(1, len(prompts)), 30)
    act()
    found = [call.exception(timeout=90) for call in calls]
    assert all(isinstance(failure, EngineDeadError) for failure in found), found
    return [*map(str, found)]


def assert_dead(engine: InferenceEngine, said: str) -> None:
    with pytest.raises(EngineDeadError, match=said):
        engine.generate("Are you there?", timeout=60)


def test_killed_scheduler_fails_every_call_in_flight_and_later_until_restart(mortal, answer):
    host, restarts, killed = mortal.rollout.host, mortal.stats()["restarts"], scheduler(mortal)
    mortal.update_weights(loaded(tiny_model(seed=1)))
    assert mortal.generate(**QUESTION).token_ids != answer
    chunks = mortal.stream("One", **LONG)
    next(chunks)
    for failure in failures(mortal, killed.kill):
        assert f"scheduler 0 (pid {killed.pid}, exit code -9)" in failure
        assert str(host.log) in failure and "restart()" in failure
    for _ in range(2):
        assert_dead(mortal, "exit code -9")
    for ask in (lambda: list(chunks), lambda: asyncio.run(mortal.agenerate("Are you there?"))):
        with pytest.raises(EngineDeadError, match="exit code -9"):
            ask()
    assert f"weight version {mortal.weight_version}), dead" in repr(mortal)
    mortal.restart()
    assert repr(mortal).endswith("(sglang, cpu, weight version 0)>")
    output = mortal.generate(**QUESTION)
    assert output.token_ids == answer  # the folder's weights again
    assert output.metadata[0]["weight_version"] == 0
    assert mortal.stats()["restarts"] == restarts + 1


@pytest.mark.slow
def test_killed_fork_server_takes_the_scheduler_along_and_restart_brings_both_back(
    mortal, answer, monkeypatch
):
    # The other engines of this process keep theirs.
    monkeypatch.setattr(launch_sglang.FORKS, "_newest", None)
    mortal.restart()
    server, child = mortal.rollout.host.fork_server, scheduler(mortal)
    for failure in failures(mortal, lambda: os.kill(server.pid(), signal.SIGKILL)):
        assert "scheduler 0" in failure
    assert until(lambda: not alive({child}), GONE_SECONDS)
    mortal.restart()
    assert mortal.generate(**QUESTION).token_ids == answer


@pytest.mark.slow
def test_silent_scheduler_is_reported_as_hung_and_its_successor_holds_no_more(mortal, answer):
    held = open_files_and_threads()
    slow_down(mortal, 2)
    mortal.generate("One", max_tokens=5, ignore_eos=True)  # ten seconds, each batch a sign of life
    slow_down(mortal, 600)
    assert_dead(mortal, r"hung: scheduler 0 \(pid \d+\) was silent for \d s")
    mortal.restart()
    assert mortal.generate(**QUESTION).token_ids == answer
    # An engine that is not cleaned up keeps four files and three threads for each process group.
    files, threads = open_files_and_threads()
    assert files <= held[0] + 2 and threads <= held[1] + 2


@pytest.mark.slow
def test_pause_longer_than_the_hang_timeout_is_no_hang(mortal):
    [row] = running(mortal, ["One"], 3, **LONG)
    mortal.pause("keep")
    time.sleep(HANG_SECONDS + 2)
    assert not mortal.dead
    mortal.resume()
    assert row.end().finish_reason == "length"


def test_stopped_scheduler_is_reported_as_hung_and_killed(mortal):
    child = scheduler(mortal)
    # Found by its state: silence has other words.
    said = rf"The engine hung: scheduler 0 \(pid {child.pid}\) was stopped by a signal"
    for failure in failures(mortal, child.suspend):
        assert re.match(said, failure) and "restart()" in failure
    assert_dead(mortal, said)
    assert until(lambda: not alive({child}), GONE_SECONDS)


def test_segmentation_fault_ends_the_scheduler_without_another_library_in_between(mortal):
    """tvm-ffi's handler would print a title of its own, and could wait without end for memory."""
    log = mortal.rollout.host.log
    scheduler(mortal).send_signal(signal.SIGSEGV)
    assert_dead(mortal, "exit code -11")
    said = log.read_text()
    assert "Fatal Python error: Segmentation fault" in said and "Segfault encountered" not in said


def test_death_reaches_the_caller_of_an_agent_loop_that_catches_everything(mortal, answer):
    from tests.support import agent_loops  # it imports verl's, which takes seconds

    loop = {"agent_loop": agent_loops.CatchesAll, "agent_kwargs": {"index": 1}}
    for failure in failures(mortal, scheduler(mortal).kill, "One", "Two", **loop):
        assert "exit code -9" in failure
    mortal.restart()
    again = mortal.generate(**QUESTION, agent_loop="single_turn_agent")
    assert again.token_ids == answer
