"""Tells in which lines of Python a program and its children spend their time.

Python imports this file at its start where its folder is on PYTHONPATH. While the file `on` is in
the folder that SAMPLES names, it notes every two milliseconds what each thread runs. When `on` is
removed, PID.json says how often it looked, and how often it saw each line, and each function on a
stack.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType

IDLE_SECONDS, SECONDS = 0.05, 0.002
KEPT = 40


def watch(folder: Path) -> None:
    while True:
        while not (folder / "on").exists():
            time.sleep(IDLE_SECONDS)
        (folder / f"{os.getpid()}.json").write_text(json.dumps(sampled(folder / "on")))


def sampled(on: Path) -> dict[str, object]:
    lines: collections.Counter[str] = collections.Counter()
    functions: collections.Counter[str] = collections.Counter()
    own, interval, samples = threading.get_ident(), sys.getswitchinterval(), 0
    sys.setswitchinterval(SECONDS / 10)  # otherwise Python's own code is seldom interrupted
    while on.exists():
        samples += 1
        for thread, frame in sys._current_frames().items():
            if thread != own:
                lines[f"{named(frame)} line {frame.f_lineno}"] += 1
                functions.update({named(each) for each in stack(frame)})
        time.sleep(SECONDS)
    sys.setswitchinterval(interval)
    seen = {"lines": lines, "functions": functions}
    return {"samples": samples, **{name: dict(n.most_common(KEPT)) for name, n in seen.items()}}


def stack(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def named(frame: FrameType) -> str:
    file = "/".join(frame.f_code.co_filename.split("/")[-2:])
    return f"{frame.f_code.co_name} ({file})"


def begin() -> None:
    folder = Path(os.environ["SAMPLES"])
    threading.Thread(target=watch, args=(folder,), daemon=True).start()


if "SAMPLES" in os.environ:
    begin()
    os.register_at_fork(after_in_child=begin)
