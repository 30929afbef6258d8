"""Refuses to use an engine in a fork of its process, and to start one where none can run.

A fork has its parent's memory but none of its threads, and code that waits for one hangs.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from multiprocessing import process
from types import FrameType

from _inf.errors import InferenceError
from _inf.runtime.processes import WorkerProcess

SPAWN = '"spawn"'
_home: int | None = None  # the process that has had an engine
_here = threading.local()  # of a thread: whether it starts an engine


def in_fork(home: int) -> InferenceError:
    """The error of a call in a fork of the process that has the engine."""
    here = os.getpid()
    return InferenceError(
        f"This is process {here}, a fork of process {home}, and a fork cannot use the engine "
        f"of its parent: the engine's threads stayed there. Call it in process {home}, or "
        f"start this process with multiprocessing's {SPAWN} and make an InferenceEngine in it."
    )


def check_start(*, children: bool = True) -> None:
    """Raise if this process cannot start an engine: it is a fork of a process that has had one, or
    it is daemonic and the engine has `children`.

    In such a fork torch itself hangs in the first computation that uses several threads.
    """
    if _home not in (None, here := os.getpid()):
        raise InferenceError(
            f"This is process {here}, a fork of process {_home}, which has had an engine, and in "
            f"such a fork no engine can start: torch's threads stayed there. Make it in process "
            f"{_home}, or start this process with multiprocessing's {SPAWN} and make it here."
        )
    if children and multiprocessing.current_process().daemon:
        raise InferenceError(
            f"This process ({os.getpid()}) is daemonic, as the workers of multiprocessing.Pool and "
            "of a torch DataLoader are. Python does not allow it the child processes of an engine. "
            "Use concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing."
            f"get_context({SPAWN})), or inf.InferenceWorker under Ray Data."
        )


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Around the start of an engine, on each thread that works for it: it imports modules, and if
    the code of one starts an engine too, both would wait for each other."""
    if getattr(_here, "starting", False):
        raise InferenceError(
            f"An engine cannot start while this thread starts another one.{_imported()}"
        )
    _here.starting = True
    try:
        yield
    finally:
        _here.starting = False


def _imported() -> str:
    """Name the file whose import has led to this call, if one has."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None or (name := frame.f_globals.get("__name__")) == "__main__":
        return ""
    return (
        f" {frame.f_code.co_filename} starts it, a file that was imported as the module {name} for "
        f"the first one. If another module {name} was meant, rename the file; otherwise put what "
        'starts an engine under `if __name__ == "__main__":`.'
    )


def note_engine() -> None:
    global _home
    _home = os.getpid()


def _forget_parent_engine() -> None:
    """Remove the parent's engine from a new fork.

    Otherwise, at the fork's exit, `multiprocessing` would join the engine's processes, which are
    not its children (AssertionError), and torch 2.9.1 would join the threads of each process group
    (`~ProcessGroupGloo`), which do not exist in the fork (segmentation fault).
    """
    for child in list(process._children):  # type: ignore[attr-defined]
        if isinstance(child, WorkerProcess):
            process._children.discard(child)  # type: ignore[attr-defined]
    if (torch := sys.modules.get("torch.distributed.distributed_c10d")) is not None:
        for group in torch._world.pg_map:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # so that it is never destroyed


os.register_at_fork(after_in_child=_forget_parent_engine)
