"""Totals since an engine's start, for `engine.stats()`; safe from any thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

from _inf.types import RequestOutput, SamplingParams

TOTALS = (
    *("calls", "requests", "prompt_tokens", "completion_tokens", "cached_tokens"),
    *("generation_cache_hits", "restarts"),
)


class Stats:
    """Counts calls, rows, tokens and busy time. The time of overlapping calls counts once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._since = 0.0
        self._busy_seconds = 0.0
        self._totals = dict.fromkeys(TOTALS, 0)
        self._repeated_tokens = 0

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Count one call and its time, for tokens per second."""
        with self._lock:
            self._since = self._since if self._running else time.monotonic()
            self._running += 1
            self._totals["calls"] += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._busy_seconds += time.monotonic() - self._since

    def add_rows(self, outputs: Sequence[RequestOutput], params: Sequence[SamplingParams]) -> None:
        """Count answers, and of each row the tokens that were not generated before."""
        with self._lock:
            self._totals["requests"] += len(outputs)
            for output, row in zip(outputs, params, strict=True):
                self._totals["prompt_tokens"] += output.prompt_tokens
                self._totals["cached_tokens"] += output.cached_tokens
                self._totals["completion_tokens"] += output.completion_tokens
                for part in row.parts:  # the limit: a row that failed has none
                    known = min(part.known_tokens, output.completion_tokens)
                    self._totals["completion_tokens"] -= known

    def add_cache_hits(self, outputs: Sequence[RequestOutput]) -> None:
        """Count answers from the generation cache, whose tokens were not generated again."""
        with self._lock:
            self._totals["generation_cache_hits"] += len(outputs)
            self._repeated_tokens += sum(output.completion_tokens for output in outputs)

    def add_restart(self) -> None:
        with self._lock:
            self._totals["restarts"] += 1

    def snapshot(self) -> dict[str, float]:
        """Return the totals, `busy_seconds`, and the `tokens_per_second` of that time."""
        with self._lock:
            busy = self._busy_seconds
            if self._running:
                busy += time.monotonic() - self._since
            generated = max(0, self._totals["completion_tokens"] - self._repeated_tokens)
            speed = generated / busy if busy else 0.0
            return {**self._totals, "busy_seconds": busy, "tokens_per_second": speed}
