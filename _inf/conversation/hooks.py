"""The hooks of the tool loop: what a row has in addition to its plain tools.

An environment, verl's tools and an interaction each implement the few of these methods that they
need. The tool loop calls them in the order of verl 0.6.1 (`workers/rollout/sglang_rollout/
sglang_rollout.py`, `_async_rollout_a_request`). There, an exception in one of them cancels the
whole batch, an aborted row never releases its tools, interactions are never finalized, and nothing
has a timeout. Here a failure ends only its row, or only sets the row's `error`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from _inf.errors import error_text
from _inf.tools.execution import CallThread, call_user_code, with_timeout
from _inf.types import T

if TYPE_CHECKING:
    from _inf.conversation.episode import Episode


@dataclasses.dataclass(frozen=True)
class Reply:
    """What an interaction says to an answer. ends: whether the conversation is over."""

    ends: bool
    content: str
    reward: float | None


class Hook:
    """A part of one row that the user wrote. What `start` raises ends the row."""

    replies = False  # whether `reply` answers the model, so that a conversation continues
    one_call_at_a_time = False  # whether the calls of one turn run one after the other

    def __init__(self, episode: Episode) -> None:
        self.episode = episode

    async def start(self) -> None:
        """Called before the first turn; may change the row's messages and tools."""

    async def reply(self) -> Reply:
        """The user's next message, after an answer without tool calls."""
        raise NotImplementedError

    async def rewards(self) -> dict[str, object]:
        """The rewards of a row that has ended by itself, by name."""
        return {}

    async def end(self) -> None:
        """Called at the end of each row, whatever ended it."""

    async def call(self, call: Callable[[], object], thread: CallThread | None = None) -> Any:
        """Make a call of the user's code within the time limit of tools. One that is not `async`
        may block, and runs on `thread`, or on a thread of its own."""
        timeout = self.episode.rules.config.tool_timeout
        return await with_timeout(call_user_code(call, thread), timeout)

    async def call_method(
        self, part: object, method: str, /, *args: object, **kwargs: object
    ) -> Any:
        """Call a method of one of verl's classes, which takes the row's id first."""
        bound = getattr(part, method)
        return await self.call(functools.partial(bound, self.episode.name, *args, **kwargs))

    async def attempt(self, name: str, work: Awaitable[T]) -> T | None:
        """Await a call; if it fails, set the row's `error`, which begins with `name`, and return
        None."""
        try:
            return await work
        except Exception as failure:
            self.episode.error = self.episode.error or f"{name}: {error_text(failure)}"
            return None
