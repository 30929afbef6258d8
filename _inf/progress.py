"""A bar of rows with generated tokens and their speed, on stderr or in a notebook."""

from __future__ import annotations

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

SECONDS_NOBODY_MINDS = 2.0

# Called with the rows finished and the tokens generated so far.
Report = Callable[[int, int], None]


@contextlib.contextmanager
def progress(rows: int, wanted: bool | None, *, before: int = 0) -> Iterator[Report | None]:
    """What reports go to; None where no bar is wanted. `before`: rows of an earlier run.

    `wanted` None: a bar on a terminal and in a notebook, for work that takes longer than two
    seconds.
    """
    if not (_someone_watches() if wanted is None else wanted):
        yield None
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without ipywidgets a notebook gets the plain bar
        from tqdm.auto import tqdm

    delay = SECONDS_NOBODY_MINDS if wanted is None else 0
    start = time.monotonic()
    # The time left goes by the mean speed: rows end in bursts.
    how: dict[str, Any] = {"initial": before, "smoothing": 0, "leave": wanted is True}
    with tqdm(total=rows, unit="row", delay=delay, **how) as bar:

        def report(done: int, tokens: int) -> None:
            seconds = max(time.monotonic() - start, 1e-6)
            bar.set_postfix_str(f"{tokens} tokens, {tokens / seconds:.0f} tok/s", refresh=False)
            bar.update(done - bar.n)

        yield report


def _someone_watches() -> bool:
    return sys.stderr.isatty() or "ipykernel" in sys.modules
