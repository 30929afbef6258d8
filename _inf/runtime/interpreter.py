"""Undoes what imports do to the caller's interpreter: SGLang's settings, lost Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing.context
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

# What PyTorch reads when it is imported, for a model on a CPU. An OpenMP thread without work spins
# before it sleeps for as long as the small operators between two products take; the default is 3
# times slower on a busy machine. Large tensors are in pages of 2 MB, so that reading the weights
# looks up fewer addresses; where the machine has none, nothing changes.
TORCH_VARIABLES = {"GOMP_SPINCOUNT": "10000", "THP_MEM_ALLOC_ENABLE": "1"}


@contextlib.contextmanager
def interpreter_left_alone() -> Iterator[None]:
    """Restore what an import of sglang changes: it sets uvloop's policy for the whole process,
    switches `threading._register_atexit` off (`srt/entrypoints/engine.py`) and, through xgrammar,
    configures the root logger."""
    policy, register = asyncio.get_event_loop_policy(), threading._register_atexit  # type: ignore[attr-defined]
    handlers, level = list(logging.root.handlers), logging.root.level
    processes: Any = multiprocessing.context._default_context
    start_method = processes._actual_context
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(policy)
        threading._register_atexit = register  # type: ignore[attr-defined]
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
        processes._actual_context = start_method


def set_torch_variables() -> None:
    for name, value in TORCH_VARIABLES.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def interrupt_kept() -> Iterator[None]:
    """Raise `KeyboardInterrupt` after the block if Ctrl-C came within it and was lost: Python
    prints and ignores an exception in a weak reference's callback, which every import has."""
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # Ctrl-C is ignored, or somebody else's
        return

    def without_a_lost_one(lost: Any) -> None:
        if not (interrupted and lost.exc_type is KeyboardInterrupt):
            report(lost)

    report, sys.unraisablehook = sys.unraisablehook, without_a_lost_one
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        sys.unraisablehook = report
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted:
            raise KeyboardInterrupt
