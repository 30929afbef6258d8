"""What memory counts as free beside engines that have not written all of their caches yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from _inf.runtime import free_memory
from _inf.runtime.free_memory import free_bytes

MB = 2**20
ENGINE = """
import mmap, pathlib, sys, tempfile
from _inf.runtime.free_memory import reserve
folder = pathlib.Path(sys.argv[1])
pages = mmap.mmap(-1, 300 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
reserve(folder, 100 << 20)
reserve(folder, 200 << 20)  # of another pool
file = tempfile.TemporaryFile()
file.truncate(100 << 20)
weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
weights[::4096]  # are read, which writes nothing
for megabytes in (0, 100, 300):
    pages[: megabytes << 20] = bytes(megabytes << 20)
    print("written", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An engine's, alone on a machine with 1,000 MB that the kernel counts as free."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    machine = SimpleNamespace(available=1000 * MB)
    monkeypatch.setattr(free_memory.psutil, "virtual_memory", lambda: machine)
    folder = tmp_path / "inf-engine-abc"
    folder.mkdir()
    return folder


def free_megabytes() -> float:
    return free_bytes(Path("/nowhere"), Path("/nowhere")) / MB


@pytest.fixture
def engine(folder):
    """A process with a cache of 300 MB."""
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(folder)],
        text=True,
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        yield process
        process.kill()


def test_memory_that_an_engine_will_write_is_not_free(engine):
    for left in (700, 800, 1000):
        assert engine.stdout.readline() == "written\n"
        assert free_megabytes() == pytest.approx(left, abs=20)
        if left < 1000:
            print(file=engine.stdin, flush=True)


def test_engine_that_was_killed_reserves_nothing(engine):
    assert engine.stdout.readline()
    assert free_megabytes() < 800
    engine.kill()
    engine.wait()
    assert free_megabytes() == 1000


def test_engine_that_ends_while_its_folder_is_read_reserves_nothing(folder, monkeypatch):
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if isinstance(path, str | Path) and Path(path) == folder:
            folder.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert free_megabytes() == 1000
    assert not folder.exists()


@pytest.mark.parametrize("changed", [{"started": 1.0}, {"pid": "x"}, None])
def test_file_of_another_process_or_of_another_form_is_passed_over(folder, changed):
    """None: a file that its process has not written yet."""
    own = psutil.Process()
    note = {"pid": own.pid, "bytes": 500 * MB, "before": 2**60, "started": own.create_time()}
    file = folder / "reserved-1.json"
    file.write_text(json.dumps(note))
    assert free_megabytes() == 500
    file.write_text("" if changed is None else json.dumps(note | changed))
    assert free_megabytes() == 1000
