"""One row of a call, which an agent loop answers.

The loop runs on a thread of its own, which it may block; the engine's thread goes on. When the row
ends, by itself or with its call, its requests end too.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from _inf.agent_loops.audit import Sampled
from _inf.agent_loops.loading import AgentLoop
from _inf.agent_loops.objects import LoopObjects
from _inf.agent_loops.requests import server_manager_class
from _inf.agent_loops.result import answered_row
from _inf.agent_loops.sampling import loop_params
from _inf.errors import RequestFailure, error_text
from _inf.runtime.loop_thread import LoopThread
from _inf.tools.execution import copied
from _inf.types import Prompt, RequestOutput, SamplingParams, Transcript, Turn


class AgentRow:
    """A row while it runs.

    template: `chat_template_kwargs`. kwargs: what `run` gets besides the messages. widths: the most
    ids of a prompt and of a response that a trainer's batch holds.
    """

    def __init__(
        self,
        loop: AgentLoop,
        prompt: Prompt,
        params: SamplingParams,
        kwargs: Mapping[str, Any],
        template: Mapping[str, Any],
        widths: tuple[int, int],
    ) -> None:
        self.finished = False
        self._loop, self._prompt, self._params, self._kwargs = loop, prompt, params, kwargs
        self._template, self._widths = template, widths
        self._sampled: list[Sampled] = []
        self._object: Any = None
        self._output: RequestOutput | None = None

    @property
    def tokens(self) -> int:
        """How many were sampled so far."""
        return sum(each.answer.completion_tokens for each in self._sampled)

    async def prepare(self, objects: LoopObjects, thread: LoopThread, turn: Turn) -> None:
        """Make the loop's object; raises `ConfigError`. Called on the engine's thread."""

        async def make() -> Any:
            return objects.make(self._loop, self._template, self._requests)

        self._requests = server_manager_class()(self._params, objects.model, turn)
        self._sampled = self._requests.sampled
        self._object = await asyncio.wrap_future(thread.submit(make()))

    async def run(self, thread: LoopThread, progressed: Callable[[], None]) -> None:
        """Run the loop to its end. What it raises aborts this row only; but where no row can be
        answered that is raised, even if the loop has caught it."""
        requests = self._requests
        requests.progressed = progressed
        answer = asyncio.wrap_future(thread.submit(self._answered()))
        try:
            await asyncio.wait({answer, requests.fatal}, return_when=asyncio.FIRST_COMPLETED)
            if requests.fatal.done():
                raise requests.fatal.result()
            self._end(answer)
        finally:
            answer.cancel()
            await requests.end()
        self.finished = True

    async def _answered(self) -> Any:
        """verl's `AgentLoopOutput`; on the loops' thread."""
        params, messages = loop_params(self._params), copy.deepcopy(self._prompt.messages)
        kwargs = copied(dict(self._kwargs))
        try:
            return await self._object.run(params, raw_prompt=messages, **kwargs)
        except (SystemExit, KeyboardInterrupt) as end:  # would end the thread's event loop
            raise RequestFailure(error_text(end)) from end

    def _end(self, answer: asyncio.Future[Any]) -> None:
        try:
            said = answer.result()
            self._output = answered_row(self._loop.name, said, self._sampled, self._widths)
        except asyncio.CancelledError:
            self.abort(None, "the agent loop cancelled its own task")
        except BaseException as failure:  # what run() raised, on another thread
            self.abort(None, error_text(failure) + _raised_at(failure, self._loop.kind))

    def abort(self, limit: str | None, error: str | None = None) -> None:
        """Drop everything of a row that was given up."""
        said = Transcript(limit=limit, error=error, agent_loop=self._loop.name)
        self._output = RequestOutput(
            finish_reason="abort", prompt_tokens=len(self._prompt.token_ids), transcript=said
        )

    def output(self, weight_version: int) -> RequestOutput:
        """Return the finished row; `weight_version` is used if it had no request."""
        assert self._output is not None
        versions = [each.answer.weight_version for each in self._sampled]
        version = max(versions, default=weight_version)
        return dataclasses.replace(self._output, weight_version=version)


def _raised_at(failure: BaseException, kind: type) -> str:
    """Return the last place of the loop's own module that an exception came through, as
    " (my_loop.py, line 41)", or nothing."""
    for raised in (failure, failure.__cause__):  # of SystemExit only the second has a place
        frames = traceback.walk_tb(raised.__traceback__ if raised else None)
        lines = [
            f" ({Path(frame.f_code.co_filename).name}, line {line})"
            for frame, line in frames
            if frame.f_globals.get("__name__") == kind.__module__
        ]
        if lines:
            return lines[-1]
    return ""
