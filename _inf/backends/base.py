"""The `Backend` protocol: the methods that every engine must have, and how it lists its features.

Everything else (prompts, conversations, tools, timeouts, totals, a trainer's tensors) is written
once, in the folders above. Token ids go in and out; a backend never handles text.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from _inf.types import CancelToken, ModelInfo, Report, Request, RequestOutput, SleepResult, Tool


class Backend(Protocol):
    """A running engine. Every method may be called from any thread, and from several at once.

    supports: the names of its features besides `generate`: "stream", "turn", "score", "grammar",
        "seed", "logit_bias", "top_logprobs", "prompt_logprobs", "update_weights", "sleep".
    tools, interactions: those named in the config's files, loaded before the engine was started.

    Raises `EngineDeadError` after its engine died or was closed, `GenerationTimeout` when the
    call's time is over, `InferenceError` in a fork of the process that started it.
    """

    name: str
    model: ModelInfo
    supports: frozenset[str]
    tools: Sequence[Tool]
    interactions: Mapping[str, Any]

    @property
    def weight_version(self) -> int:
        """The version of the weights in use now; 0 until they are updated."""

    def check_process(self) -> None:
        """Raise in a fork of the process that owns the engine; every call would hang there."""

    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        """Answer a batch, in order."""

    def stream(
        self, request: Request, put: Callable[[RequestOutput], None], cancel: CancelToken
    ) -> Future[None]:
        """Answer one request; `put` is called with the output so far, on the engine's thread."""

    async def turn(self, request: Request) -> RequestOutput:
        """Answer one request inside `converse`."""

    def converse(
        self, rows: Callable[[], Coroutine[Any, Any, list[RequestOutput]]], cancel: CancelToken
    ) -> list[RequestOutput]:
        """Await `rows()` where `turn` may be awaited, and return its outputs."""

    def score(
        self, sequences: Sequence[tuple[list[int], int]], cancel: CancelToken
    ) -> list[RequestOutput]:
        """Score each `(ids, start)`: the `prompt_logprobs` and `likeliest_logprobs` of its output
        begin before `ids[start]`."""

    def update_weights(self, weights: object, version: int | None) -> int:
        """Load new weights, all of them, after the running calls have ended; return the version."""

    def sleep(self) -> SleepResult:
        """Free the accelerator's memory after the running calls have ended."""

    def wake_up(self) -> None:
        """Take the memory again and serve the same weights."""

    def close(self) -> None:
        """Stop the engine and its processes; safe to call twice, and does nothing in a fork."""
