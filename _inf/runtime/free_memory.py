"""Measures how much memory this process may still take, within its container's limits, and releases
memory that it does not need."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import psutil

MOUNTED, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def free_bytes(mounted: Path = MOUNTED, membership: Path = MEMBERSHIP) -> int:
    """Return psutil's available memory, or less if a control group of this process has less."""
    available: int = psutil.virtual_memory().available
    return max(0, min([available, *_left_in_groups(mounted, membership)]))


def give_back() -> None:
    """Return to the system what the C library keeps of freed memory; only glibc can."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


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
