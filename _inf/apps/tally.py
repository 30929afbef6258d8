"""Counts the rows and tokens of a run, and shows them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from _inf.runtime.progress import Report, progress, say

SAY_SECONDS = 30.0  # between two lines about the progress


class Tally:
    """Counts what a run has done, and shows it in a bar, or where there can be none in a line now
    and then.

    total: rows of the whole file. done, answered: at first an earlier run's. line: a line's
    text, with the attributes of this object. tell: what prints it. Attributes of this run alone:
    `rows`, `tokens`, and the `seconds` until the last answer.
    """

    def __init__(
        self,
        total: int,
        done: int,
        answered: int,
        line: str = "{0.done} of {0.total} lines{0.speed}",
        tell: Callable[[str], None] = lambda text: say(f"inf: {text}"),
    ) -> None:
        self.total, self.done, self.answered = total, done, answered
        self.tokens, self.seconds = 0, 0.0
        self._before, self._line, self._tell = done, line, tell
        self._report: Report | None = None
        self._start = self._said = time.monotonic()

    @contextlib.contextmanager
    def showing(self) -> Iterator[None]:
        """Measure the time of the run, and show a bar if there can be one."""
        self._start = self._said = time.monotonic()
        with progress(self.total, None, before=self.done) as self._report:
            yield

    @property
    def rows(self) -> int:
        return self.done - self._before

    @property
    def tokens_per_second(self) -> float | None:
        """None if this run has no tokens."""
        return self.tokens / self.seconds if self.tokens else None

    @property
    def speed(self) -> str:
        """The tokens and their speed, as the end of a line; empty without tokens."""
        per_second = self.tokens_per_second
        return f", {self.tokens} tokens, {per_second:.0f} tok/s" if per_second else ""

    def add(self, *, done: int = 0, answered: int = 0, tokens: int = 0) -> None:
        now = time.monotonic()
        self.done += done
        self.answered += answered
        self.tokens += tokens
        if tokens:
            self.seconds = now - self._start
        if self._report:
            self._report(self.done, self.tokens)
        elif now - self._said >= SAY_SECONDS:
            self._said = now
            self._tell(self._line.format(self))
