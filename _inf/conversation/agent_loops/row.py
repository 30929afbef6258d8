"""One row of a call, which an agent loop answers.

The loop runs on a thread of its own, which it may block; the engine's thread does not wait. When
the row ends, by itself or with its call, its requests end too.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from _inf.conversation.agent_loops.loading import AgentLoop
from _inf.conversation.agent_loops.objects import LoopObjects
from _inf.conversation.agent_loops.requests import server_manager_class
from _inf.conversation.agent_loops.result import answered_row
from _inf.conversation.agent_loops.sampling import loop_params
from _inf.conversation.recorder import Recorder
from _inf.errors import RequestFailure, error_text
from _inf.runtime.loop_thread import LoopThread
from _inf.tools.results import copied
from _inf.turns import Transcript
from _inf.types import Prompt, RequestOutput, SamplingParams

if TYPE_CHECKING:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput


@dataclasses.dataclass(frozen=True)
class AskedLoop:
    """The agent loop of one prompt's rows. kwargs: what `run` gets in addition to the messages.
    template: `chat_template_kwargs`. thread: where all loops of an engine run."""

    loop: AgentLoop
    kwargs: Mapping[str, object]
    template: Mapping[str, object]
    objects: LoopObjects
    thread: LoopThread
    renders, adds, text_only = True, "agent loops render", True

    def row(self, prompt: Prompt, params: SamplingParams, recorder: Recorder) -> AgentRow:
        return AgentRow(self, prompt, params, recorder)


class AgentRow:
    """A row while it runs."""

    def __init__(
        self, asked: AskedLoop, prompt: Prompt, params: SamplingParams, recorder: Recorder
    ) -> None:
        self.recorder = recorder
        self._asked, self._loop, self._thread = asked, asked.loop, asked.thread
        self._prompt, self._params = prompt, params
        self._object: AgentLoopBase = None

    async def prepare(self) -> None:
        """Make the loop's object; raises `ConfigError`."""
        objects = self._asked.objects
        requests = server_manager_class()(self._params, objects.model, self.recorder)

        async def make() -> AgentLoopBase:
            return objects.make(self._loop, self._asked.template, requests)

        self._requests = requests
        self._object = await asyncio.wrap_future(self._thread.submit(make()))

    async def run(self) -> RequestOutput:
        """Run the loop to its end. What it raises aborts this row only; but where no row can be
        answered that is raised, even if the loop has caught it."""
        requests = self._requests
        answer = asyncio.wrap_future(self._thread.submit(self._answered()))
        try:
            await asyncio.wait({answer, requests.fatal}, return_when=asyncio.FIRST_COMPLETED)
            if requests.fatal.done():
                raise requests.fatal.result()
            return self._ended(answer)
        finally:
            answer.cancel()
            await requests.end()

    async def _answered(self) -> AgentLoopOutput:
        """What the loop returns; on the loops' thread."""
        params, messages = loop_params(self._params), copy.deepcopy(self._prompt.messages)
        kwargs = copied(dict(self._asked.kwargs))
        try:
            return await self._object.run(params, raw_prompt=messages, **kwargs)
        except (SystemExit, KeyboardInterrupt) as end:  # would end the thread's event loop
            raise RequestFailure(error_text(end)) from end

    def _ended(self, answer: asyncio.Future[AgentLoopOutput]) -> RequestOutput:
        try:
            returned = answer.result()
            objects = self._asked.objects
            limits = objects.widths, objects.model.limits.vocabulary
            return answered_row(self._loop.name, returned, self.recorder, *limits)
        except asyncio.CancelledError:
            return self.aborted(None, "the agent loop cancelled its own task")
        except BaseException as failure:  # what run() raised, on another thread
            place = _raised_at(failure, self._loop.kind)
            return self.aborted(None, error_text(failure) + place)

    def aborted(self, limit: str | None, error: str) -> RequestOutput:
        transcript = Transcript(limit=limit, agent_loop=self._loop.name)
        return self.recorder.aborted(self._prompt.token_ids, transcript, error)


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
