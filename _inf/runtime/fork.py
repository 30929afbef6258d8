"""A fork of the caller's process: it cannot use the engine, and must not end with a crash for it.

A fork has its parent's memory and none of its threads: not the engine's, not those of the pools, of
Gloo and of OpenMP. Whatever waits for one of them waits for ever, so nothing is begun there.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
from multiprocessing import process

from _inf.errors import InferenceError
from _inf.runtime.worker import WorkerProcess

SPAWN = '"spawn"'
_home: int | None = None  # the process that has had an engine


def check_process(home: int) -> None:
    """Raise where this process is not `home` but a fork of it."""
    if (here := os.getpid()) != home:
        raise InferenceError(
            f"This is process {here}, a fork of process {home}, and a fork cannot use the engine "
            f"of its parent: the engine's threads stayed there. Call it in process {home}, or "
            f"start this process with multiprocessing's {SPAWN} and make an InferenceEngine in it."
        )


def check_start() -> None:
    """Raise where this process cannot start an engine: a fork of one that has had one, or a
    daemonic one.

    In such a fork torch itself hangs, in the first computation that takes several threads.
    """
    if _home not in (None, here := os.getpid()):
        raise InferenceError(
            f"This is process {here}, a fork of process {_home}, which has had an engine, and in "
            f"such a fork none can start: torch's threads stayed there. Make it in process "
            f"{_home}, or start this process with multiprocessing's {SPAWN} and make it here."
        )
    if multiprocessing.current_process().daemon:
        raise InferenceError(
            f"This process ({os.getpid()}) is daemonic, as the workers of multiprocessing.Pool and "
            "of a torch DataLoader are, and Python allows it no children, which an engine needs. "
            "Use concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing."
            f"get_context({SPAWN})), or inf.InferenceWorker under Ray Data."
        )


def note_engine() -> None:
    """An engine's thread runs in this process: its forks can start no engine of their own."""
    global _home
    _home = os.getpid()


def _let_go() -> None:
    """In a new fork, of what is its parent's.

    At the fork's exit `multiprocessing` would join the engine's children, which are no children of
    its, and torch 2.9.1 the threads of each process group (`~ProcessGroupGloo`), which are not
    there: the one is an AssertionError, the other a segmentation fault.
    """
    for child in list(process._children):  # type: ignore[attr-defined]
        if isinstance(child, WorkerProcess):
            process._children.discard(child)  # type: ignore[attr-defined]
    if (torch := sys.modules.get("torch.distributed.distributed_c10d")) is not None:
        for group in torch._world.pg_map:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # for good: it is never destroyed


os.register_at_fork(after_in_child=_let_go)
