"""Shows a progress bar of rows, tokens and tokens per second, on stderr or in a notebook."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from _inf.types import Report as Report

DELAY_SECONDS = 2.0


@contextlib.contextmanager
def progress(rows: int, wanted: bool | None, *, before: int = 0) -> Iterator[Report | None]:
    """Yield the function that updates the bar, or None for no bar. `before`: rows done earlier.

    `wanted` None: a bar on a terminal and in a notebook, for work that takes longer than two
    seconds; it is erased at the end. In a notebook the bar of `wanted` True is erased too.
    """
    notebook = _in_notebook()
    if not ((notebook or sys.stderr.isatty()) if wanted is None else wanted):
        yield None
        return
    from tqdm import tqdm

    delay = DELAY_SECONDS if wanted is None else 0
    start, bar = time.time(), None

    def report(done: int, tokens: int) -> None:
        nonlocal bar
        seconds = max(time.time() - start, 1e-6)
        if bar is None:  # created late: `say` would show a bar that tqdm only delays
            if seconds < delay:
                return
            bar = tqdm(
                total=rows,
                initial=before,
                unit="row",
                file=_NotebookLine() if notebook else sys.stderr,
                leave=wanted is True and not notebook,
                smoothing=0,  # the mean speed: rows end in bursts, and tokens come between
                miniters=0,
            )
            bar.start_t = start
        bar.set_postfix_str(f"{tokens} tokens, {tokens / seconds:.0f} tok/s", refresh=False)
        bar.update(done - bar.n)

    try:
        yield report
    finally:
        if bar is not None:
            bar.close()


def say(text: str) -> None:
    """Print a line on stderr, above a bar if there is one."""
    from tqdm import tqdm

    tqdm.write(text, file=sys.stderr)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class _NotebookLine:
    """A file for tqdm: one line of the cell's output, replaced at each write.

    On stderr every state of the bar would stay in the saved notebook; with ipywidgets, its first.
    """

    def __init__(self) -> None:
        from IPython import display

        show: Any = display.display
        self._line = show({"text/plain": ""}, raw=True, display_id=True)

    def write(self, text: str) -> None:
        self._line.update({"text/plain": text.strip()}, raw=True)

    def flush(self) -> None:
        """Do nothing: `write` shows the line at once."""
