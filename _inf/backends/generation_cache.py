"""Keeps the answers of greedy and seeded requests, for any backend (`generation_cache`).

In: a running `Backend`. Out: one to use in its place. An equal request, of `generate` or of a
conversation's turn, is answered from memory: token ids, parameters and everything else in it but
its place in the call are the same. Streams and scores are always computed.
"""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Sequence
from typing import Any

from cachetools import LRUCache

from _inf.backends.base import Backend
from _inf.response.stats import Stats
from _inf.types import CancelToken, Report, Request, RequestOutput, SleepResult


class CachedBackend:
    """A backend that computes equal requests once; emptied by new weights and by `sleep`.

    size: how many answers are kept; those not asked for the longest go first. An answer from memory
    is a copy of the computed one, with its log probs, cached tokens and weight version.
    """

    def __init__(self, backend: Backend, size: int, stats: Stats) -> None:
        self._backend, self._size, self._stats = backend, size, stats
        self._lock = threading.Lock()
        self.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def clear(self) -> None:
        """Forget all answers, also those that are being computed now."""
        # A call adds its answers to the cache that was there when it began.
        self._cache: LRUCache[str, bytes] = LRUCache(self._size)

    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        cache, keys = self._cache, [_key(request) for request in requests]
        rows = {} if self._backend.dead else self._known(cache, keys)
        known = list(rows.values())
        missing = [index for index in range(len(requests)) if index not in rows]
        if missing:
            asked = [requests[index] for index in missing]
            computed = self._backend.generate(asked, cancel, _with(report, known))
            if len({output.weight_version for output in (*known, *computed)}) > 1:
                return self._backend.generate(requests, cancel, report)  # updated in between
            self._keep(cache, [keys[index] for index in missing], computed)
            rows.update(zip(missing, computed, strict=True))
        self._stats.add_cache_hits(known)
        return [rows[index] for index in range(len(requests))]

    async def turn(self, request: Request) -> RequestOutput:
        cache, key = self._cache, _key(request)
        if known := self._known(cache, [key]):
            self._stats.add_cache_hits([known[0]])
            return known[0]
        output = await self._backend.turn(request)
        self._keep(cache, [key], [output])
        return output

    def update_weights(self, weights: object, version: int | None) -> int:
        try:
            return self._backend.update_weights(weights, version)
        finally:
            self.clear()

    def sleep(self) -> SleepResult:
        try:
            return self._backend.sleep()
        finally:
            self.clear()

    def _known(
        self, cache: LRUCache[str, bytes], keys: Sequence[str | None]
    ) -> dict[int, RequestOutput]:
        with self._lock:
            answers = {index: cache.get(key) for index, key in enumerate(keys) if key}
        return {index: pickle.loads(each) for index, each in answers.items() if each is not None}

    def _keep(
        self,
        cache: LRUCache[str, bytes],
        keys: Sequence[str | None],
        outputs: Sequence[RequestOutput],
    ) -> None:
        """Keep copies of the outputs, which no caller can change."""
        new = {key: pickle.dumps(row) for key, row in zip(keys, outputs, strict=True) if key}
        with self._lock:
            for key, answer in new.items():
                cache[key] = answer


def _key(request: Request) -> str | None:
    """What equal requests have in common; None if their answers may differ."""
    repeatable = request.params.greedy or request.params.seed is not None
    return repr(dataclasses.replace(request, prompt_index=None)) if repeatable else None


def _with(report: Report | None, known: Sequence[RequestOutput]) -> Report | None:
    """Count the known rows and their tokens as finished."""
    if report is None:
        return None
    tokens = sum(output.completion_tokens for output in known)
    return lambda rows, more: report(rows + len(known), more + tokens)
