"""What memory counts as free beside engines that have not written all of their caches yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.runtime import free_memory
from _inf.runtime.free_memory import free_bytes

MB = 2**20
ENGINE = """
import mmap, pathlib, sys
from _inf.runtime.free_memory import reserve
folder = pathlib.Path(sys.argv[1])
pages = mmap.mmap(-1, 300 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
reserve(folder, 100 << 20)
reserve(folder, 200 << 20)  # of another pool
for megabytes in (0, 100, 300):
    pages[: megabytes << 20] = bytes(megabytes << 20)
    print("written", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
def engine(folder: Path) -> Iterator[subprocess.Popen[str]]:
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


def test_memory_that_an_engine_will_write_is_not_free(engine: subprocess.Popen[str]) -> None:
    assert engine.stdin is not None and engine.stdout is not None
    for left in (700, 800, 1000):
        assert engine.stdout.readline() == "written\n"
        assert free_megabytes() == pytest.approx(left, abs=20)
        if left < 1000:
            print(file=engine.stdin, flush=True)


def test_engine_that_was_killed_reserves_nothing(engine: subprocess.Popen[str]) -> None:
    assert engine.stdout is not None and engine.stdout.readline()
    assert free_megabytes() < 800
    engine.kill()
    engine.wait()
    assert free_megabytes() == 1000


def test_engine_that_ends_while_its_folder_is_read_reserves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def scan(path: Any) -> Any:
        if isinstance(path, str | Path) and Path(path) == folder:
            folder.rmdir()
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    assert free_megabytes() == 1000
    assert not folder.exists()


@pytest.mark.parametrize("note", ["", "[]", {"bytes": 5}, {"pid": "x"}, {"started": "1"}])
def test_file_of_another_process_or_of_another_form_is_passed_over(
    folder: Path, note: object
) -> None:
    whole = {"pid": os.getpid(), "bytes": 500 * MB, "before": 0, "started": "1"}
    text = note if isinstance(note, str) else json.dumps({**whole, **note})  # type: ignore[dict-item]
    (folder / "reserved-1.json").write_text(text)
    assert free_megabytes() == 1000


def test_freed_memory_is_given_back() -> None:
    """In a process of its own: in this one the C library may have given it back already."""
    script = """
from pathlib import Path
from _inf.runtime.free_memory import give_back

def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024

parts = [bytes(100_000) for _ in range(2000)]  # below the size that the C library maps alone
kept = [bytes(100_000)]  # so that those before it do not end the heap
parts.clear()
before = own()
give_back()
print(before - own())
"""
    given = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert float(given.stdout) > 100, given
