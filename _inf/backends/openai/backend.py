"""Implements `Backend` with a server: one HTTP request for each row.

A cancelled call closes its connections, at which a server aborts their rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _inf.backends.base import Adapting, Backend, Pausing, Scoring, Updating
from _inf.backends.openai.adapters import ServerAdapters
from _inf.backends.openai.client import Server, queue_of_call
from _inf.backends.openai.failures import prompt_name
from _inf.backends.openai.text import Answer, TextForm
from _inf.backends.rows import check_finite, row_or_failure
from _inf.errors import ConfigError, InferenceError, PromptError, RequestFailure, shown
from _inf.parts.adapters import Adapter
from _inf.parts.prompt_logprobs import PromptLogprobs, PromptScores
from _inf.runtime.calls import CancelToken
from _inf.runtime.host import Host
from _inf.runtime.side_by_side import run_rows
from _inf.types import ModelInfo, Put, Report, Request, RequestOutput, SamplingParams, Scored

if TYPE_CHECKING:
    from _inf.backends.openai.servers import Found

IS_PAUSED = "/is_paused"  # vLLM's, and of `inf serve`


class OpenAIBackend(Backend):
    """A server that answers requests over HTTP."""

    name, on_cpu, weight_version = "openai", False, 0  # of the weights a server does not tell
    loaded: ServerAdapters

    def __init__(
        self,
        server: Server,
        found: Found,
        adapters: ServerAdapters,
        host: Host,
        model: ModelInfo,
    ) -> None:
        super().__init__(host, model, found.supports)
        self.server, self.form, self.loaded = server, found.form, adapters

    @contextlib.asynccontextmanager
    async def in_call(self, cancel: CancelToken) -> AsyncIterator[None]:
        queue_of_call.set(asyncio.Lock())
        yield

    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        for request in requests:
            self.form.sent(request)  # refuses what it cannot express
        tokens = [0] * len(requests)

        async def answered(row: int, request: Request) -> RequestOutput:
            output = await self.turn(request)
            if scores := output.of(PromptScores):
                check_finite(scores.logprobs, request.row)
            tokens[row] = output.completion_tokens
            return output

        async def all_rows() -> list[RequestOutput]:
            rows = (
                row_or_failure(request, answered(row, request))
                for row, request in enumerate(requests)
            )
            return await run_rows(rows, report, lambda: sum(tokens))

        return self.await_rows(all_rows, cancel)

    async def turn(self, request: Request, put: Put | None = None) -> RequestOutput:
        request, version = self.loaded.served(request)
        output = await self._asked(request, put)
        if version is None:
            return output
        return dataclasses.replace(output, weight_versions=[(version, 0)])

    async def _asked(self, request: Request, put: Put | None) -> RequestOutput:
        try:
            return await self._received(request, put)
        except (ConfigError, PromptError) as refusal:
            if not isinstance(self.form, TextForm) or not self.form.corrected(refusal):
                raise
        return await self._received(request, put)

    async def _received(self, request: Request, put: Put | None) -> RequestOutput:
        answer, index, row = self.form.answer(request), request.prompt_index, RequestOutput()
        path, body = self.form.sent(request)
        if put is None:
            row = self._read(answer, await self.server.ask(path, body, index), index)
            return dataclasses.replace(row, finish_reason=row.finish_reason or "stop")
        body |= self.form.in_stream
        async with contextlib.aclosing(self.server.chunks(path, body, index)) as chunks:
            async for chunk in chunks:
                row = self._read(answer, chunk, index)
                if row.finish_reason is None:  # the last tokens may end in a stop string
                    put(row)
        if row.finish_reason is None:
            raise RequestFailure(
                f"{self.server.access.base_url} ended the stream in the middle of the answer."
            )
        return row

    def _read(self, answer: Answer, chunk: Any, index: int | None) -> RequestOutput:
        try:
            return answer(chunk)
        except (AttributeError, KeyError, TypeError, ValueError):
            raise RequestFailure(
                f"{prompt_name(index)}: {self.server.access.base_url} sent an answer of an unknown "
                f"form: {shown(chunk)}."
            ) from None


class ScoringServer(OpenAIBackend, Scoring):
    """A vLLM."""

    def score(
        self,
        sequences: Sequence[Scored],
        cancel: CancelToken,
        likeliest: int = 1,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        """Score each sequence as the prompt of a request for one token, which is dropped."""
        parts = (PromptLogprobs(likeliest), *([Adapter(adapter)] if adapter else []))
        params = SamplingParams(max_tokens=1, temperature=0, parts=parts)
        requests = [Request(each.ids, params, n, n) for n, each in enumerate(sequences)]
        return [
            RequestOutput(
                parts=(_from(row.of(PromptScores), sequence.start - 1),),
                finish_reason="length",
                prompt_tokens=row.prompt_tokens,
                weight_versions=row.weight_versions,
            )
            for row, sequence in zip(self.generate(requests, cancel, None), sequences, strict=True)
        ]


class VllmServer(ScoringServer, Adapting):
    """A vLLM from 0.32 on, or `inf serve`."""

    loaded: ServerAdapters

    @property
    def adapters(self) -> list[str]:
        return self.host.run(self.loaded.listed(), CancelToken())


class PausingServer(VllmServer, Pausing):
    """One that has the routes for it."""

    @property
    def paused(self) -> bool:
        return bool(self._control(IS_PAUSED, None)["is_paused"])

    def pause(self, mode: str) -> None:
        self._control(f"/pause?mode={mode}&clear_cache=false", {})

    def resume(self) -> None:
        self._control("/resume", {})

    def reset_prefix_cache(self) -> None:
        """Raises `InferenceError` if the server refuses, as vLLM does while rows run."""
        if not self._control("/reset_prefix_cache", {})["success"]:
            raise InferenceError(
                f"{self.server.root} did not empty its prefix cache, because rows run; wait for "
                "them, or end them with pause('abort')."
            )

    def _control(self, path: str, body: Mapping[str, object] | None) -> Any:
        return self.host.run_beside(self.server.control(self.server.root + path, body))


class UpdatedServer(OpenAIBackend, Updating):
    """SGLang's server on this machine. weights: how it is given new ones."""

    def __init__(self, server: Server, found: Found, *others: Any) -> None:
        super().__init__(server, found, *others)
        assert found.weights is not None
        self._weights = found.weights
        self.weight_version = found.weights.version

    def update_weights(
        self, weights: object, version: int | None, *, keep: bool = False, recompute: bool = False
    ) -> int:
        from _inf.backends import new_weights  # PyTorch

        self.check_process()
        tensors = new_weights.checked(weights, self._weights.expected)
        new = self.weight_version + 1 if version is None else version
        self.host.run_alone(self._weights.load(self.server, tensors, new))
        self.weight_version = new
        return new


def _from(scores: PromptScores | None, start: int) -> PromptScores:
    """The scores from a place in the prompt on."""
    assert scores is not None
    return PromptScores(scores.logprobs[start:], scores.tops[start:])
