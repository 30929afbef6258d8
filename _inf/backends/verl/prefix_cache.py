"""Empties the scheduler's prefix cache.

SGLang 0.5.9 (`srt/managers/scheduler.py`, `_is_no_request`) refuses while requests run, and also
when an answer was sent and the scheduler's loop has not come round since, which verl does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from _inf.errors import InferenceError

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1  # seconds between two attempts
# Counted, not timed, because a slow scheduler answers rarely; a minute at least.
MAX_REFUSALS = 600


class PrefixCache:
    """The cache of one engine. flush: SGLang's, whose answer has `success`."""

    def __init__(self, flush: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._flush = flush
        self._one = asyncio.Lock()

    async def empty(self, others: Callable[[], bool] = lambda: False) -> None:
        """Empty it, after aborted requests have ended; leave it as it is if `others` run.

        Raises if the scheduler refuses without end.
        """
        pause = FIRST_PAUSE
        for _ in range(MAX_REFUSALS):
            # Shielded, because after a cancelled flush SGLang never answers a later one.
            if (await asyncio.shield(self._attempt())).success or others():
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        raise InferenceError(
            f"The engine's scheduler refused {MAX_REFUSALS} times to empty its prefix cache, as "
            "if a request still ran; restart() brings up a new one."
        )

    async def _attempt(self) -> Any:
        """One at a time: where one begins just as another ends, SGLang fails a third one that waits
        (`managers/tokenizer_communicator_mixin.py`)."""
        async with self._one:
            return await self._flush()
