"""A host without an engine: what calls in a fork raise, and calls after a death."""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import tempfile
import threading
import time
from collections.abc import Callable

import pytest

from _inf.errors import EngineDeadError, InferenceError
from _inf.runtime import forks
from _inf.runtime.calls import CancelToken
from _inf.runtime.host import Host
from _inf.runtime.processes import Watch


@pytest.fixture
def host(monkeypatch):
    """A host in a process that has had no engine."""
    monkeypatch.setattr(forks, "_home", None)
    host = Host()
    yield host
    host.stop()


def in_a_fork(work: Callable[[], None]) -> str:
    """Return the error that `work` raises in a fork; "" if it raises none."""
    ours, theirs = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            work()
        except BaseException as failure:
            os.write(theirs, f"{type(failure).__name__}: {failure}".encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(theirs)
    with os.fdopen(ours) as said:
        return said.read()


def test_module_imported_for_a_start_may_not_start_another_engine(host, tmp_path, monkeypatch):
    """As a script with the name of a module that the start imports, on any of its threads."""
    monkeypatch.syspath_prepend(tmp_path)
    program = "import inf; inf.InferenceEngine(rollout={'name': 'hf'}, model_path='nowhere')"
    (tmp_path / "shadowing.py").write_text(program)

    def build() -> object:
        return importlib.import_module("shadowing")

    says = rf"{tmp_path}/shadowing.py starts it, .* module shadowing .* rename the file"
    for start in (lambda: host.start(build), lambda: started_here(build)):
        with pytest.raises(InferenceError, match=says):
            start()
    assert started_here(lambda: 1) == 1  # the refused start has ended, so that another may begin


def started_here(build: Callable[[], object]) -> object:
    with forks.starting():
        return build()


def test_fork_may_start_an_engine_where_the_parents_start_was_refused(host):
    forks.check_start()  # and then a ConfigError, before anything ran
    assert in_a_fork(forks.check_start) == ""


def test_fork_of_a_process_that_has_had_an_engine_may_start_none(host):
    host.start(lambda: None)
    while_it_runs = in_a_fork(forks.check_start)
    host.stop()
    here = f"a fork of process {os.getpid()}, which has had an engine"
    for said in (while_it_runs, in_a_fork(forks.check_start)):
        assert said.startswith("InferenceError: ") and here in said and '"spawn"' in said
    forks.check_start()


def test_calls_submitted_just_before_the_stop_get_its_error_and_warn_of_nothing(host, recwarn):
    began = threading.Event()

    async def busy() -> None:
        began.set()
        time.sleep(1)

    host.start(lambda: None)
    calls = [host.submit(busy(), CancelToken())]
    assert began.wait(10)
    calls += [host.submit(asyncio.sleep(60), CancelToken()) for _ in range(20)]
    host.stop()
    for call in calls:
        with pytest.raises(EngineDeadError, match="shut down"):
            call.result(0)
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []


def test_temporary_folder_with_a_path_too_long_for_sockets_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(InferenceError, match="the engine's sockets; set TMPDIR"):
        Host(sockets=True)
    assert not list(folder.iterdir())
    Host().stop()  # of a backend without child processes


def test_engine_is_dead_when_the_watch_over_its_processes_fails(host, monkeypatch):
    class Broken(Watch):  # of this engine only: others may run in this process
        def look(self) -> None:
            raise PermissionError("no /proc here")

    monkeypatch.setattr("_inf.runtime.host.Watch", Broken)
    host.start(lambda: None)
    with pytest.raises(EngineDeadError, match="watch over its processes ended with PermissionErr"):
        host.run(asyncio.sleep(10), CancelToken())
