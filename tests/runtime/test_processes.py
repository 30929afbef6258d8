"""Detecting hung processes: real processes with invented heartbeats."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from _inf.runtime.processes import LOOK_SECONDS, Watch

LIMIT = 10 * LOOK_SECONDS


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def watch(pid: int, heartbeat: object = None, limit: float | None = LIMIT) -> Watch:
    return Watch({"child 0": pid}, lambda: heartbeat, limit)


def send(pid: int, number: signal.Signals, status: str) -> None:
    os.kill(pid, number)
    while psutil.Process(pid).status() != status:
        pass


def test_stopped_process_hangs_at_the_second_look_and_one_that_is_gone_does_not(child):
    watching = watch(child)
    assert watching.look() is None
    for _ in range(2):
        send(child, signal.SIGSTOP, psutil.STATUS_STOPPED)
        assert watching.look() is None
        send(child, signal.SIGCONT, psutil.STATUS_SLEEPING)  # it goes on between two looks
        assert watching.look() is None
    send(child, signal.SIGSTOP, psutil.STATUS_STOPPED)
    assert watching.look() is None
    assert watching.look() == "child 0 was stopped by a signal (SIGSTOP)"
    psutil.Process(child).kill()
    os.waitpid(child, 0)
    assert [watching.look(), watching.look()] == [None, None]


def test_nothing_is_silent_without_work_or_without_a_limit(child):
    for watching in (watch(child, None), watch(child, "one", limit=None)):
        assert [watching.look() for _ in range(20)] == [None] * 20


def test_any_heartbeat_and_any_moment_without_work_restart_the_count(child):
    for heartbeat in ("another", None):
        beats = iter(["one"] * 8 + [heartbeat] + ["one"] * 10)
        watching = Watch({"child 0": child}, lambda beats=beats: next(beats), LIMIT)
        assert [watching.look() for _ in range(18)] == [None] * 18
