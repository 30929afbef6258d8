"""The process from which engines are forked, with small functions for its imports and engines."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import connection, forkserver
from pathlib import Path

import psutil
import pytest

from _inf.errors import EngineDeadError, InferenceError
from _inf.runtime import fork_server
from _inf.runtime.forks import check_start
from _inf.runtime.interpreter import set_torch_variables
from tests.support.forks import forked, server_that, worker
from tests.support.scripts import GONE_SECONDS, alive, environment, until


@pytest.fixture
def server(tmp_path):
    (tmp_path / "server").mkdir()
    server = server_that("imports", tmp_path / "server" / "log")
    assert server.acquire()
    yield server
    if not server._stop.is_set():
        server.release()


def test_fork_gets_its_files_the_environment_of_now_and_a_log_of_its_own(
    server, tmp_path, monkeypatch
):
    monkeypatch.setenv("FOR_THE_FORK", "set after the server began")
    reader, writer = multiprocessing.Pipe(duplex=False)
    process = forked(server, worker("report", tmp_path / "log"), writer)
    parent, variables = reader.recv()
    process.join(10)
    assert process.exitcode == 0
    assert parent == server.pid()
    assert variables["FOR_THE_FORK"] == "set after the server began"
    assert variables["IMPORTED_BY"] is None
    assert variables["TMPDIR"].startswith(f"{tmp_path}/")
    assert (tmp_path / "log").read_text() == "forked\n"
    assert (tmp_path / "server" / "log").read_text() == "imported\n"


def test_exit_codes_and_signals_of_forks_are_known_and_wake_who_waits(
    server, tmp_path, monkeypatch
):
    exits = forked(server, worker("exit_with_7", tmp_path / "log"))
    sleeps = [forked(server, worker("sleep", tmp_path / "log")) for _ in range(2)]
    exits.join(10)
    assert exits.exitcode == 7
    sleeps[0].kill()
    codes: list[int | None] = []
    readers = [threading.Thread(target=lambda: codes.append(sleeps[0].exitcode)) for _ in range(4)]
    assert connection.wait([sleeps[0].sentinel], 10)
    read = forkserver.read_signed
    monkeypatch.setattr(forkserver, "read_signed", lambda file: (time.sleep(0.1), read(file))[1])
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert codes == [-signal.SIGKILL] * 4
    assert sleeps[1].is_alive()


def test_fork_that_the_system_refuses_leaves_the_others_alone(tmp_path):
    server = server_that("no_second_fork", tmp_path / "server")
    assert server.acquire()
    runs = forked(server, worker("sleep", tmp_path / "log"))
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="Resource temporarily unavailable"):
            forked(server, worker("sleep", tmp_path / "log"))
    assert runs.is_alive() and server.process.is_alive()
    server.release()


CALLER = """
import sys, time
from pathlib import Path
from tests.support.forks import forked, server_that, worker

server = server_that(sys.argv[2], Path(sys.argv[1]))
server.acquire()
server.pid()
if sys.argv[2] == "imports":
    forked(server, worker("sleep", Path(sys.argv[1])))
print("ready", flush=True)
time.sleep(300)
"""
PATHS = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}


@pytest.mark.parametrize("moment", ["slow_imports", "imports"])
def test_killed_caller_leaves_neither_server_nor_forks(tmp_path, moment):
    caller = subprocess.Popen(
        [sys.executable, "-c", CALLER, str(tmp_path / "log"), moment],
        env=environment(**PATHS), stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert caller.stdout.readline() == b"ready\n"
        family = set(psutil.Process(caller.pid).children(recursive=True))
        assert len(family) == (3 if moment == "imports" else 2)  # one is the resource tracker
    finally:
        caller.kill()
        caller.wait(10)
    assert until(lambda: not alive(family), GONE_SECONDS)


def test_server_is_shared_only_by_engines_that_inherit_the_same(monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    before = fork_server.inherited()
    assert fork_server.inherited() == before
    set_torch_variables()  # as an engine on Transformers does in this process
    assert fork_server.inherited() == before
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert fork_server.inherited() != before
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert fork_server.inherited() != before
    monkeypatch.undo()
    assert fork_server.inherited() == before
    if len(cores := os.sched_getaffinity(0)) > 1:
        os.sched_setaffinity(0, {min(cores)})
        try:
            assert fork_server.inherited() != before
        finally:
            os.sched_setaffinity(0, cores)


def test_engine_without_children_restarts_in_a_daemonic_process(monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    with pytest.raises(InferenceError, match="is daemonic.*ProcessPoolExecutor.*InferenceWorker"):
        check_start()
    with fork_server.SharedForkServer("").kept():
        pass
