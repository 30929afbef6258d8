"""Implements the `Backend` protocol with a server.

In: `Request`s. Out: `RequestOutput`s. One HTTP request for each row, on the event loop of a thread
of its own; a cancelled call closes its connections, at which a server aborts their rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from _inf.backends.base import Lacking
from _inf.backends.openai.client import Server
from _inf.backends.openai.failures import prompt_name
from _inf.backends.openai.generate import GenerateAnswer, GenerateForm
from _inf.backends.openai.text import TextAnswer, TextForm
from _inf.backends.openai.tokens import TokenAnswer, TokenForm
from _inf.errors import ConfigError, PromptError, RequestFailure, shown
from _inf.runtime.host import Host
from _inf.types import CancelToken, ModelInfo, Report, Request, RequestOutput

# The call whose conversations run in this context, for `Pace`.
conversations: contextvars.ContextVar[object] = contextvars.ContextVar("inf_conversations")


Form: TypeAlias = TextForm | TokenForm | GenerateForm


@dataclasses.dataclass
class OpenAIBackend(Lacking):
    """A server that answers requests over HTTP."""

    server: Server
    form: Form
    host: Host
    model: ModelInfo
    name: str = "openai"
    weight_version: int = 0  # a server does not tell
    on_cpu: bool = False

    def __post_init__(self) -> None:
        self.check_process = self.host.check_process
        self.close = self.host.stop  # a method of this object would be kept alive by the finalizer
        self.supports = self.form.supports

    @property
    def dead(self) -> bool:
        return self.host.death is not None

    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        for request in requests:
            self.form.sent(request)  # refuses what it cannot express
        return self.host.run(self._generate(requests, report), cancel)

    async def _generate(
        self, requests: Sequence[Request], report: Report | None
    ) -> list[RequestOutput]:
        call, finished, tokens = object(), 0, 0

        async def row(request: Request) -> RequestOutput:
            nonlocal finished, tokens
            output = await self._answered(request, call)
            finished, tokens = finished + 1, tokens + output.completion_tokens
            if report is not None:
                report(finished, tokens)
            return output

        rows = [asyncio.ensure_future(row(request)) for request in requests]
        try:
            return list(await asyncio.gather(*rows))
        finally:
            for each in rows:
                each.cancel()
            await asyncio.gather(*rows, return_exceptions=True)

    def stream(
        self, request: Request, put: Callable[[RequestOutput], None], cancel: CancelToken
    ) -> Future[None]:
        async def answer() -> None:
            put(await self._answered(request, object(), put))

        return self.host.submit(answer(), cancel)

    async def turn(self, request: Request) -> RequestOutput:
        return await self._answered(request, conversations.get())

    def converse(
        self, rows: Callable[[], Coroutine[Any, Any, list[RequestOutput]]], cancel: CancelToken
    ) -> list[RequestOutput]:
        async def call() -> list[RequestOutput]:
            conversations.set(object())
            return await rows()

        return self.host.run(call(), cancel)

    async def _answered(
        self, request: Request, call: object, put: Callable[[RequestOutput], None] | None = None
    ) -> RequestOutput:
        """Return the finished answer. `put` is called with what has arrived; None: no stream."""
        try:
            return await self._received(request, call, put)
        except (ConfigError, PromptError) as refusal:
            if not isinstance(self.form, TextForm) or not self.form.corrected(refusal):
                raise
        return await self._received(request, call, put)

    async def _received(
        self, request: Request, call: object, put: Callable[[RequestOutput], None] | None
    ) -> RequestOutput:
        answer, index = self.form.answer(request), request.prompt_index
        path, body = self.form.sent(request)
        if put is None:
            whole = self._read(answer, await self.server.ask(path, body, call, index), index)
            return dataclasses.replace(whole, finish_reason=whole.finish_reason or "stop")
        body |= self.form.in_stream
        async with contextlib.aclosing(self.server.chunks(path, body, call, index)) as chunks:
            async for chunk in chunks:
                row = self._read(answer, chunk, index)
                if row.finish_reason is None:  # the last tokens may end in a stop string
                    put(row)
        if answer.finish_reason is None:
            raise RequestFailure(
                f"{self.server.access.base_url} ended the stream in the middle of the answer."
            )
        return answer.output()

    def _read(
        self, answer: TextAnswer | TokenAnswer | GenerateAnswer, chunk: Any, index: int | None
    ) -> RequestOutput:
        """Add a chunk to the answer, which is refused if it is of another form."""
        try:
            answer.add(chunk)
            return answer.output()
        except (AttributeError, KeyError, TypeError, ValueError):
            raise RequestFailure(
                f"{prompt_name(index)}: {self.server.access.base_url} sent an answer of an unknown "
                f"form: {shown(chunk)}."
            ) from None
