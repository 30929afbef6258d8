"""Measures how much memory this process may still take, within its container's limits, and releases
memory that it does not need.

An engine's cache on a CPU takes memory when it is written first, so the kernel counts as free what
engines will take. Each of their processes says in a file of its engine's folder what it reserved.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from _inf.runtime.processes import PREFIX

MOUNTED, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_FILE = "reserved-{}.json"  # of a process


def free_bytes(mounted: Path = MOUNTED, membership: Path = MEMBERSHIP) -> int:
    """Return psutil's available memory, or less if a control group of this process has less,
    without what this user's engines have reserved and not written yet."""
    available: int = psutil.virtual_memory().available
    left = min([available, *_left_in_groups(mounted, membership)])
    return max(0, left - sum(_unwritten()))


def reserve(folder: Path, count: int) -> None:
    """Say that this process will write so many bytes more. folder: its engine's."""
    own = psutil.Process()
    file = folder / _FILE.format(own.pid)
    if file.exists():
        count += json.loads(file.read_text())["bytes"]
    note = {"pid": own.pid, "started": own.create_time(), "bytes": count, "before": _own_bytes(own)}
    file.write_text(json.dumps(note))


def give_back() -> None:
    """Return to the system what the C library keeps of freed memory; only glibc can."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _unwritten() -> Iterator[int]:
    """What each process has reserved, less what it has grown by since."""
    folder = Path(tempfile.gettempdir())
    # pathlib's own glob (Python 3.11) raises for a folder that its engine removes meanwhile.
    for found in glob.iglob(f"{PREFIX}*/{_FILE.format('*')}", root_dir=folder):
        # Its process may have ended, or be writing it.
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, psutil.Error):
            file = folder / found
            if file.stat().st_uid != os.geteuid():
                continue
            note = json.loads(file.read_text())
            process = psutil.Process(note["pid"])
            # Another process may have its number later; the clock may have been set a little.
            if abs(process.create_time() - note["started"]) < 1:
                written = _own_bytes(process) - note["before"]
                yield max(0, note["bytes"] - max(0, written))


def _own_bytes(process: psutil.Process) -> int:
    """The memory that a process has written, without what it maps from files."""
    memory = process.memory_info()
    return int(memory.rss - memory.shared)


def _left_in_groups(mounted: Path, membership: Path) -> Iterator[int]:
    """Yield the free bytes of control groups, version 2 (`0::/path`) and 1 (`4:memory:/path`); for
    a path that a container does not see, those of its parents up to the mount's root."""
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = mounted / "memory" if controllers else mounted
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            if group.is_relative_to(root) and (left := _left(group, bool(controllers))) is not None:
                yield left


def _left(group: Path, version_1: bool) -> int | None:
    """Free bytes of a group. Its page cache counts as free, since the kernel drops it on demand."""
    names = ("limit_in_bytes", "usage_in_bytes") if version_1 else ("max", "current")
    try:
        limit, used = (int((group / f"memory.{name}").read_text()) for name in names)
        lines = (group / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no such file, or "max": no limit
        return None
    sizes = dict(line.split() for line in lines)
    prefix = "total_" if version_1 else ""
    cache = (int(sizes.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
    return limit - used + sum(cache)
