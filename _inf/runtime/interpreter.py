"""Undoes what importing SGLang changes in the caller's interpreter, and makes imports faster."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import multiprocessing.context
import threading
from collections.abc import Iterator
from typing import Any


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
