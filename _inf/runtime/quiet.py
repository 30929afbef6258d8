"""What a newcomer sees while an engine starts: one line, and none of the third parties' warnings.

`INF_LOG` (a level of the standard `logging`: debug, info, warning ...) is for who wants to see
more: at `debug` nothing is held back.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import warnings
from collections.abc import Iterator

from _inf.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error", "critical")
CHATTY = ("sglang", "transformers", "torchao", "torch", "verl", "asyncio", "ray.widgets.util")


def level() -> str:
    """`INF_LOG`, checked; `warning` where it is not set."""
    name = os.environ.get("INF_LOG", "").strip().lower() or "warning"
    if name not in LEVELS:
        raise ConfigError(f"INF_LOG: {name!r} is not a level; it is one of {', '.join(LEVELS)}.")
    return name


def engine_log_level() -> str:
    """SGLang's `log_level`, for the engine's own log file."""
    return "info" if level() in ("debug", "info") else "warning"


@contextlib.contextmanager
def starting(model: str) -> Iterator[None]:
    """Say on stderr that an engine is starting, as long as it does."""
    text = f"Starting {model} (half a minute) ..."
    if level() in ("debug", "info"):
        print(f"inf: {text}", file=sys.stderr)
    if level() != "warning" or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


@contextlib.contextmanager
def descriptors() -> Iterator[None]:
    """Hold back what C++ code writes to stdout and stderr; for a few milliseconds only, since it
    holds back everybody's."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {fd: os.dup(fd) for fd in (1, 2)}
    # Shown at debug, but never between the answers on stdout.
    nothing = os.dup(2) if level() == "debug" else os.open(os.devnull, os.O_WRONLY)
    try:
        for fd in saved:
            os.dup2(nothing, fd)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        for fd, copy in saved.items():
            os.dup2(copy, fd)
            os.close(copy)
        os.close(nothing)


@contextlib.contextmanager
def third_party() -> Iterator[None]:
    """Hold back what imports and constructors of others print, unless `INF_LOG` is debug."""
    if level() == "debug":
        logging.basicConfig(level=logging.DEBUG)
        yield
        return
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in CHATTY:
        if (chatty := logging.getLogger(name)).level == logging.NOTSET:
            chatty.setLevel(logging.CRITICAL)  # what goes wrong, our exceptions say
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
