"""Shows one line while an engine starts, and hides the output of third-party libraries, of which
`INF_LOG` (a level of the standard `logging`: debug, info, warning ...) shows more."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import IO, Any

from _inf.errors import ConfigError

LEVELS = ("debug", "info", "warning", "error", "critical")
_stdout = threading.RLock()
CHATTY = "sglang transformers torchao torch verl mcp asyncio ray.widgets.util".split()


def level() -> str:
    """Return `INF_LOG`, checked; `warning` if it is not set."""
    name = os.environ.get("INF_LOG", "").strip().lower() or "warning"
    if name not in LEVELS:
        raise ConfigError(f"INF_LOG: {name!r} is not a level; it is one of {', '.join(LEVELS)}.")
    return name


def engine_log_level() -> str:
    """SGLang's `log_level`, for the engine's own log file."""
    return "info" if level() in ("debug", "info") else "warning"


@contextlib.contextmanager
def starting(model: str, takes: str) -> Iterator[None]:
    """Show on stderr that an engine is starting, until it has started."""
    text = f"Starting {model} ({takes}) ..."
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
    """Hide what C++ code writes to stdout and stderr; only for a few milliseconds, because it hides
    the output of the whole process."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = {fd: os.dup(fd) for fd in (1, 2)}
    # At debug it is shown, but on stderr, so that stdout has only answers.
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
    """Hide what third-party imports and constructors print and warn of, unless `INF_LOG` is debug;
    warnings of ours come from `warn`."""
    if level() == "debug":
        logging.basicConfig(level=logging.DEBUG)
        yield
        return
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    for name in CHATTY:
        if (chatty := logging.getLogger(name)).level == logging.NOTSET:
            chatty.setLevel(logging.CRITICAL)  # our exceptions report the errors
    with no_warnings():
        yield


@contextlib.contextmanager
def no_bars() -> Iterator[None]:
    """Hide Transformers' progress bars, of which 5.x has some for loading and saving weights; those
    of downloads too, which it switches together."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging as bars

    shown, downloads_shown = bars.is_progress_bar_enabled(), not are_progress_bars_disabled()
    if level() == "debug" or not shown:
        yield
        return
    bars.disable_progress_bar()
    try:
        yield
    finally:
        bars.enable_progress_bar()
        if not downloads_shown:
            disable_progress_bars()


@contextlib.contextmanager
def stdout_to(stream: IO[str]) -> Iterator[None]:
    """Send what Python prints on stdout to `stream`, also what other threads print. One at a time:
    the end of a `redirect_stdout` puts back what was there when it began, another thread's stream
    too, and then that stays."""
    with _stdout, contextlib.redirect_stdout(stream):
        yield


class _Ours(str):
    """The text of a warning that `third_party` shows."""


def warn(message: str) -> None:
    """As `warnings.warn`, but `third_party` does not hide it."""
    warnings.warn(_Ours(message), stacklevel=2)


class _Beginning:
    """Matches texts that begin so, until it is over; in a filter's place for a pattern."""

    def __init__(self, beginning: str) -> None:
        self.beginning, self.over = beginning, False

    def match(self, text: str) -> bool:
        shown = not self.beginning and isinstance(text, _Ours)
        return not (self.over or shown) and text.startswith(self.beginning)


@contextlib.contextmanager
def no_warnings(beginning: str = "") -> Iterator[None]:
    """Hide warnings that begin so, by default all but those of `warn`, on any thread; for several
    threads at once. The end of `warnings.catch_warnings` puts back the filters that were there when
    it began, those of another thread too, and then they stay."""
    hidden = _Beginning(beginning)
    added = ("ignore", hidden, Warning, None, 0)
    module: Any = warnings
    filters = module.filters
    filters.insert(0, added)
    module._filters_mutated()
    try:
        yield
    finally:
        hidden.over = True  # it may be in a copy that someone puts back later
        for now in (filters, module.filters):
            with contextlib.suppress(ValueError):
                now.remove(added)
        module._filters_mutated()
