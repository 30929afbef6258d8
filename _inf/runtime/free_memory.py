"""How much memory this process may still take: the machine's, within its container's limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

MOUNTED, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def free_bytes(mounted: Path = MOUNTED, membership: Path = MEMBERSHIP) -> int:
    """What psutil calls available, and no more than each control group around this process has."""
    available: int = psutil.virtual_memory().available
    return max(0, min([available, *_rooms(mounted, membership)]))


def _rooms(mounted: Path, membership: Path) -> Iterator[int]:
    """The limits of version 2 (`0::/path`) and of version 1 (`4:memory:/path`); a path that a
    container does not see counts as its mount's root, which is one of its parents."""
    for line in membership.read_text().splitlines() if membership.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, limit, used, prefix = mounted, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            root, prefix = mounted / "memory", "total_"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        place = root / path.lstrip("/")
        for group in (place, *place.parents):
            if group == root or root in group.parents:
                yield from _room(group, limit, used, prefix)


def _room(group: Path, limit: str, used: str, prefix: str) -> Iterator[int]:
    """The page cache is the group's too, and given up for whoever needs memory."""
    try:
        lines = (group / "memory.stat").read_text().splitlines()
        held = int((group / used).read_text())
        allowed = int((group / limit).read_text())  # of version 2 also "max": a ValueError
        cache = {name: int(size) for name, _, size in (line.partition(" ") for line in lines)}
    except (OSError, ValueError):
        return
    files = sum(cache.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
    yield allowed - held + files
