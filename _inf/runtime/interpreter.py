"""Undoes what imports do to the caller's interpreter: SGLang's settings, lost time, lost Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import multiprocessing.context
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

OPENMP_SPINS = "10000"


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


@contextlib.contextmanager
def garbage_kept() -> Iterator[None]:
    """Switch the garbage collector off for imports: it would look through a million objects again
    and again and find nothing, for a fifth of their time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def let_openmp_wait_briefly() -> None:
    """Let an OpenMP thread without work spin before it sleeps for as long as the small operators
    between two products take; the default is 3 times slower beside other work. It is read when
    PyTorch is imported; the user's own setting stays."""
    os.environ.setdefault("GOMP_SPINCOUNT", OPENMP_SPINS)


@contextlib.contextmanager
def interrupt_kept() -> Iterator[None]:
    """Raise `KeyboardInterrupt` after the block if Ctrl-C came within it and was lost: Python
    ignores an exception in a weak reference's callback, and every import has such callbacks."""
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # Ctrl-C is ignored, or somebody else's
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted:
            raise KeyboardInterrupt
