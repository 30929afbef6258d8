"""`generation_cache` between calls that a real engine cannot be made to run in this order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from _inf.backends.base import Backend
from _inf.backends.generation_cache import CachedBackend
from _inf.errors import EngineDeadError
from _inf.parts.top_logprobs import TopLogprobs
from _inf.response.stats import Stats
from _inf.runtime.calls import CancelToken
from _inf.types import Request, RequestOutput, SamplingParams

GREEDY = SamplingParams(max_tokens=4, temperature=0)


def request(token: int, params: SamplingParams = GREEDY, index: int | None = None) -> Request:
    return Request([token], params, index)


class Scripted:
    """Answers with the request's token and a number that counts up; `during` runs inside a call."""

    def __init__(self) -> None:
        self.weight_version, self.dead, self.calls = 0, False, 0
        self.asked: list[list[int]] = []
        self.during: Callable[[], None] = lambda: None

    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Any
    ) -> list[RequestOutput]:
        if self.dead:
            raise EngineDeadError("dead")
        version = self.weight_version
        self.asked.append([each.token_ids[0] for each in requests])
        self.during()
        outputs = []
        for each in requests:
            self.calls += 1
            ids = [each.token_ids[0], self.calls]
            outputs.append(RequestOutput(ids, [-0.5] * 2, "stop", None, 1, 2, 0, [(version, 0)]))
        if report:
            report(len(outputs), 2 * len(outputs))
        return outputs

    def update_weights(self, weights: object, version: int | None) -> int:
        self.weight_version = self.weight_version + 1 if version is None else version
        return self.weight_version


@pytest.fixture
def scripted():
    return Scripted()


def cached(scripted: Scripted, size: int = 10, stats: Stats | None = None) -> CachedBackend:
    return CachedBackend(cast(Backend, scripted), size, stats or Stats())


def answers(backend: CachedBackend, *tokens: int) -> list[list[int]]:
    requests = [request(token, index=index) for index, token in enumerate(tokens)]
    outputs = backend.generate(requests, CancelToken(), None)
    return [output.token_ids for output in outputs]


def test_known_rows_come_from_memory_and_the_others_are_computed_in_order(scripted):
    stats, reports = Stats(), []
    backend = cached(scripted, size=3, stats=stats)
    assert answers(backend, 5, 6) == [[5, 1], [6, 2]]
    rows = [request(token) for token in (7, 6, 8, 5, 6)]
    outputs = backend.generate(rows, CancelToken(), lambda *done: reports.append(done))
    assert [output.token_ids for output in outputs] == [[7, 3], [6, 2], [8, 4], [5, 1], [6, 2]]
    assert scripted.asked == [[5, 6], [7, 8]] and reports == [(5, 10)]
    assert stats.snapshot()["generation_cache_hits"] == 3
    outputs[1].token_ids.clear()  # a caller's copy
    # The one that was not asked for the longest is forgotten.
    assert answers(backend, 6, 5) == [[6, 2], [5, 5]]


def test_only_equal_requests_that_would_be_answered_so_again_are_known(scripted):
    backend = cached(scripted, size=100)
    changed = {"max_tokens": 5, "seed": 4, "parts": (TopLogprobs(1),)}
    rows = [request(5), request(5, SamplingParams(max_tokens=4, temperature=0.7, seed=3))]
    rows += [request(5, dataclasses.replace(GREEDY, **{k: v})) for k, v in changed.items()]
    rows.append(request(5, dataclasses.replace(GREEDY, parts=(TopLogprobs(2),))))
    by_chance = request(5, SamplingParams(max_tokens=4, temperature=0.7))
    for _ in range(2):
        backend.generate([*rows, by_chance], CancelToken(), None)
    assert scripted.calls == len(rows) + 2


def test_new_weights_empty_it_also_under_the_same_version_and_during_a_call(scripted):
    backend = cached(scripted)
    assert answers(backend, 5) == [[5, 1]]
    backend.update_weights({}, 0)
    scripted.during = lambda: cast(None, backend.update_weights({}, 0))
    assert answers(backend, 5) == [[5, 2]]
    scripted.during = lambda: None
    assert answers(backend, 5) == [[5, 3]]


@pytest.mark.parametrize("version", [0, 1])
def test_update_between_the_known_and_the_computed_rows_computes_all_of_them(version, scripted):
    backend = cached(scripted)
    answers(backend, 5)
    found = backend._known

    def updated(*args: Any) -> Any:
        known = found(*args)
        backend.update_weights({}, version)
        return known

    backend._known = updated  # type: ignore[method-assign]
    outputs = backend.generate([request(5), request(6)], CancelToken(), None)
    assert {output.weight_version for output in outputs} == {version}
    assert [output.token_ids[0] for output in outputs] == [5, 6]
    assert scripted.asked[-1] == [5, 6]


def test_dead_engine_answers_nothing_from_memory(scripted):
    backend = cached(scripted)
    answers(backend, 5)
    scripted.dead = True
    with pytest.raises(EngineDeadError):
        answers(backend, 5)
