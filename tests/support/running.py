"""Rows that run while a test does something else to their engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from inf import InferenceEngine, StreamChunk
from tests.support.scripts import until
from tests.support.tool_calling import calculator

T = TypeVar("T")


def begun(work: Callable[[], T]) -> Future[T]:
    """What `work` will return; it runs on a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as failure:
            future.set_exception(failure)

    threading.Thread(target=run, daemon=True).start()
    return future


def under_way(engine: InferenceEngine, ask: Callable[[], T]) -> Future[T]:
    """What a call will return; it has begun, which one that waits for `resume` has not."""
    call = begun(ask)
    calls = engine._backend.host.lock._calls
    assert until(lambda: calls or call.done(), 60)
    return call


class RunningRow:
    """One streamed row."""

    def __init__(self, engine: InferenceEngine, prompt: object, **keywords: Any) -> None:
        self.chunks: list[StreamChunk] = []
        self._end = begun(lambda: self._read(engine, prompt, keywords))

    def _read(self, engine: InferenceEngine, prompt: object, keywords: dict[str, Any]) -> None:
        for chunk in engine.stream(prompt, **keywords):
            self.chunks.append(chunk)

    @property
    def token_ids(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def logprobs(self) -> list[float]:
        return [value for chunk in self.chunks for value in chunk.logprobs]

    @property
    def ended(self) -> bool:
        return self._end.done()

    def end(self, seconds: float = 120) -> RunningRow:
        """Wait for its end; raise what the stream raises."""
        self._end.result(seconds)
        return self

    @property
    def finish_reason(self) -> str | None:
        return self.chunks[-1].finish_reason

    @property
    def weight_versions(self) -> list[tuple[int, int]]:
        about = self.chunks[-1].metadata
        assert about is not None
        return [*map(tuple, about["weight_versions"])]


def running(
    engine: InferenceEngine, prompts: Sequence[object], tokens: int, **keywords: Any
) -> list[RunningRow]:
    """Streams of these prompts; each has at least so many tokens."""
    rows = [RunningRow(engine, prompt, **keywords) for prompt in prompts]
    assert have(rows, tokens)
    return rows


def have(rows: Sequence[RunningRow], tokens: int) -> bool:
    """Wait until each row has so many tokens; raise what a stream raises."""

    def all_have() -> bool:
        for row in rows:
            if row.ended:
                row.end()
        return all(len(row.token_ids) >= tokens for row in rows)

    return until(all_have, 120)


def stand_still(rows: Sequence[RunningRow], seconds: float = 0.3) -> bool:
    """Whether no row gets a token in so many seconds; those under way to it have a moment."""
    time.sleep(0.1)
    before = [len(row.token_ids) for row in rows]
    time.sleep(seconds)
    return before == [len(row.token_ids) for row in rows]


def calculator_until_paused(
    engine: InferenceEngine,
) -> tuple[Callable[[str], str], threading.Event]:
    """A tool whose call lasts until the engine is paused, and what is set when it begins."""
    entered = threading.Event()

    def held(expression: str) -> str:
        entered.set()
        assert until(lambda: engine.paused, 30)
        return "84"

    return calculator(held), entered
