"""Keeps the answers of greedy and seeded requests, for any backend (`generation_cache`).

In: a running `Backend`. Out: one to use in its place. An equal request, of `generate` or of a
conversation's turn, is answered from memory: token ids, parameters and everything else in it but
its place in the call are the same. Streams and scores are always computed.
"""

from __future__ import annotations

import dataclasses
import pickle
import threading
from collections.abc import Mapping, Sequence
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
        cache = self._cache
        known = {} if self._backend.dead else self._known(cache, requests)
        if not known:
            return self._kept(cache, requests, self._backend.generate(requests, cancel, report))
        missing = [request for index, request in enumerate(requests) if index not in known]
        computed = self._backend.generate(missing, cancel, _with(report, known)) if missing else []
        if len({output.weight_version for output in (*known.values(), *computed)}) > 1:
            return self._backend.generate(requests, cancel, report)  # updated in between
        rest = iter(self._kept(cache, missing, computed))
        self._stats.add_cache_hits(list(known.values()))
        return [known[index] if index in known else next(rest) for index in range(len(requests))]

    async def turn(self, request: Request) -> RequestOutput:
        cache = self._cache
        if known := self._known(cache, [request]):
            self._stats.add_cache_hits([known[0]])
            return known[0]
        return self._kept(cache, [request], [await self._backend.turn(request)])[0]

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
        self, cache: LRUCache[str, bytes], requests: Sequence[Request]
    ) -> dict[int, RequestOutput]:
        with self._lock:
            answers = {
                index: cache.get(_key(request))
                for index, request in enumerate(requests)
                if _repeatable(request)
            }
        return {index: pickle.loads(each) for index, each in answers.items() if each is not None}

    def _kept(
        self,
        cache: LRUCache[str, bytes],
        requests: Sequence[Request],
        outputs: list[RequestOutput],
    ) -> list[RequestOutput]:
        """Return the outputs, kept as copies that no caller can change."""
        new = {
            _key(request): pickle.dumps(output)
            for request, output in zip(requests, outputs, strict=True)
            if _repeatable(request)
        }
        with self._lock:
            for key, answer in new.items():
                cache[key] = answer
        return outputs


def _key(request: Request) -> str:
    return repr(dataclasses.replace(request, prompt_index=None))


def _repeatable(request: Request) -> bool:
    return request.params.greedy or request.params.seed is not None


def _with(report: Report | None, known: Mapping[int, RequestOutput]) -> Report | None:
    """Count the known rows and their tokens as finished."""
    if report is None:
        return None
    tokens = sum(output.completion_tokens for output in known.values())
    return lambda rows, more: report(rows + len(known), more + tokens)
