"""Keeps the answers of greedy and seeded requests, for any backend (`generation_cache`).

An equal request, of `generate` or of a conversation's turn, is answered from memory: all in it but
its place in the call is the same. Streams and scores are always computed.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from typing import Any

from cachetools import LRUCache

from _inf.backends.base import Backend
from _inf.response.stats import Stats
from _inf.runtime.calls import CancelToken
from _inf.types import Report, Request, RequestOutput

CHANGES = ("update_weights", "load_adapter", "sleep")  # after which other answers are right


class CachedBackend:
    """A backend that computes equal requests once; emptied by new weights, also of an adapter, and
    by `sleep`.

    size: how many answers are kept; those not asked for the longest go first. An answer from memory
    is a copy of the computed one, with its log probs, cached tokens and weight version.
    """

    def __init__(self, backend: Backend, size: int, stats: Stats) -> None:
        self._backend, self._size, self._stats = backend, size, stats
        self._lock = threading.Lock()
        self.clear()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name not in CHANGES:
            return found

        def change(*args: object, **kwargs: object) -> object:
            try:
                return found(*args, **kwargs)
            finally:
                self.clear()

        return change

    def clear(self) -> None:
        """Forget all answers, also those that are being computed now."""
        # A call adds its answers to the cache that was there when it began.
        self._cache: LRUCache[str, bytes] = LRUCache(self._size)

    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        cache, dead = self._cache, self._backend.dead
        answers = [None if dead else self._known(cache, request) for request in requests]
        known = [answer for answer in answers if answer is not None]
        missing = [r for r, answer in zip(requests, answers, strict=True) if answer is None]
        computed = self._backend.generate(missing, cancel, _with(report, known)) if missing else []
        if known and missing and cache is not self._cache:
            return self._backend.generate(requests, cancel, report)  # changed in between
        for request, output in zip(missing, computed, strict=True):
            self._keep(cache, request, output)
        self._stats.add_cache_hits(known)
        rest = iter(computed)
        return [next(rest) if answer is None else answer for answer in answers]

    async def turn(self, request: Request) -> RequestOutput:
        cache = self._cache
        if (known := self._known(cache, request)) is not None:
            self._stats.add_cache_hits([known])
            return known
        output = await self._backend.turn(request)
        self._keep(cache, request, output)
        return output

    def _known(self, cache: LRUCache[str, bytes], request: Request) -> RequestOutput | None:
        with self._lock:
            answer = cache.get(_key(request))
        return None if answer is None else pickle.loads(answer)

    def _keep(self, cache: LRUCache[str, bytes], request: Request, output: RequestOutput) -> None:
        """Keep a copy, which no caller can change, of an answer that would come again."""
        again = request.params.greedy or request.params.seed is not None
        if again and output.finish_reason != "abort":
            with self._lock:
                cache[_key(request)] = pickle.dumps(output)


def _key(request: Request) -> str:
    return repr(request)  # without its place in the call


def _with(report: Report | None, known: Sequence[RequestOutput]) -> Report | None:
    if report is None:
        return None
    tokens = sum(output.completion_tokens for output in known)
    return lambda rows, more: report(rows + len(known), more + tokens)
