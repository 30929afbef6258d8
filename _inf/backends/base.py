"""The protocol: what an engine of any make must be able to do, and how it says what it cannot.

Everything else (prompts, conversations, tools, timeouts, totals, a trainer's tensors) is written
once above it. Token ids go in and out; text is nobody's business here.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from _inf.types import CancelToken, ModelInfo, Report, Request, RequestOutput, SleepResult, Tool


class Backend(Protocol):
    """A running engine. Every method may be called from any thread, from several at once.

    supports: the names of what it can do beside `generate`: "stream", "turn", "score", "grammar",
        "seed", "logit_bias", "top_logprobs", "prompt_logprobs", "update_weights", "sleep".
    tools, interactions: those that the config's files name, loaded before the engine was started.

    Raises `EngineDeadError` once its engine has died or was closed, `GenerationTimeout` where the
    call's time is over, `InferenceError` in a fork of the process that started it.
    """

    name: str
    model: ModelInfo
    supports: frozenset[str]
    tools: Sequence[Tool]
    interactions: Mapping[str, Any]

    @property
    def weight_version(self) -> int:
        """Of the weights that are served now; 0 until they are updated."""

    def check_process(self) -> None:
        """Raise in a fork of the process that has the engine, where every call would hang."""

    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        """Answer a batch, in order."""

    def stream(
        self, request: Request, put: Callable[[RequestOutput], None], cancel: CancelToken
    ) -> Future[None]:
        """Answer one request; `put` gets the output so far, on the engine's thread."""

    async def turn(self, request: Request) -> RequestOutput:
        """Answer one request inside `converse`."""

    def converse(
        self, rows: Callable[[], Coroutine[Any, Any, list[RequestOutput]]], cancel: CancelToken
    ) -> list[RequestOutput]:
        """Await `rows()` where `turn` may be awaited, and return its outputs."""

    def score(
        self, sequences: Sequence[tuple[list[int], int]], cancel: CancelToken
    ) -> list[RequestOutput]:
        """For each `(ids, start)` an output whose `prompt_logprobs` and `likeliest_logprobs` begin
        before `ids[start]`."""

    def update_weights(self, weights: Any, version: int | None) -> int:
        """Serve new weights, all of them, when the calls inside have ended; their version."""

    def sleep(self) -> SleepResult:
        """Give the accelerator's memory back when the calls inside have ended."""

    def wake_up(self) -> None:
        """Take it again, and serve the same weights."""

    def close(self) -> None:
        """Stop the engine and its processes; safe to call twice, and does nothing in a fork."""
