"""verl's tools and interactions around one row: begun, rewarded, and always ended.

In verl 0.6.1 (`workers/rollout/sglang_rollout/sglang_rollout.py`) what they raise cancels the whole
batch, a row that is given up never releases its tools, an interaction is never finalized, and
nothing has a timeout. Here it is the row's own `error`, and no more.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from verl.interactions.base import BaseInteraction
from verl.tools.schemas import ToolResponse

from _inf.conversation.episode import Episode
from _inf.errors import ToolError

current_episode: contextvars.ContextVar[Episode] = contextvars.ContextVar("inf_episode")


async def _noted(name: str, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """None, and the episode's `error`, where it raises or takes too long."""
    episode = current_episode.get()
    try:
        return await asyncio.wait_for(method(*args, **kwargs), episode.rules.tool_timeout)
    except Exception as failure:
        episode.error = episode.error or f"{name}: {type(failure).__name__}: {failure}"
        return None


class RewardingTool:
    """A verl tool's life around the rows of a call."""

    def __init__(self, tool: Any) -> None:
        self.name = tool.name
        self._tool = tool
        self._begun: set[str] = set()

    async def create(self, instance_id: str, **kwargs: Any) -> tuple[str, ToolResponse]:
        """What goes wrong here ends the row before it begins."""
        self._begun.add(instance_id)
        created = self._tool.create(instance_id, **kwargs)
        timeout = current_episode.get().rules.tool_timeout
        _, response = await asyncio.wait_for(created, timeout)
        if not response.is_empty():
            raise ToolError(f"{self.name}: create() answers with a message, which is not served.")
        return instance_id, response

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> Any:
        return await _noted(self.name, self._tool.calc_reward, instance_id, **kwargs)

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        if instance_id in self._begun:
            self._begun.discard(instance_id)
            await _noted(self.name, self._tool.release, instance_id, **kwargs)


class BoundedInteraction:
    """One that raises, or takes too long, ends its own row."""

    def __init__(self, interaction: Any, name: str) -> None:
        self._interaction = interaction
        self._name = name
        self._begun: set[str] = set()

    async def start_interaction(self, instance_id: str, **kwargs: Any) -> None:
        self._begun.add(instance_id)
        started = self._interaction.start_interaction(instance_id, **kwargs)
        await asyncio.wait_for(started, current_episode.get().rules.tool_timeout)

    async def generate_response(
        self, instance_id: str, messages: list[dict[str, Any]], **kwargs: Any
    ) -> tuple[bool, str, float | None, dict[str, Any]]:
        method = self._interaction.generate_response
        given = await _noted(self._name, method, instance_id, messages, **kwargs)
        done, content, reward, metrics = given or (True, "", None, {})
        current_episode.get().concluded = done
        return done, content, reward, metrics

    async def finish(self, instance_id: str) -> None:
        own = type(self._interaction).finalize_interaction
        if instance_id in self._begun and own is not BaseInteraction.finalize_interaction:
            await _noted(self._name, self._interaction.finalize_interaction, instance_id)
        self._begun.discard(instance_id)
