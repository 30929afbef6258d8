"""Starts verl's tools and interaction before a row's first turn, and ends them after its last.

In verl 0.6.1 (`workers/rollout/sglang_rollout/sglang_rollout.py`) an exception in their methods
cancels the whole batch, an aborted row never releases its tools, interactions are never finalized,
and nothing has a timeout. Here a failure ends only its row, or only sets the row's `error`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from _inf.conversation.episode import Episode
from _inf.errors import ToolError
from _inf.tools.execution import with_timeout


class _RowPart:
    """A tool or an interaction in one row; its methods take the row's name first."""

    def __init__(self, name: str, episode: Episode) -> None:
        self._name = name
        self._episode = episode
        self._started = False

    async def _start(self, method: Callable[..., Any], /, **kwargs: Any) -> Any:
        """Await its first method; a failure ends the row before its first turn."""
        self._started = True
        started = method(self._episode.name, **kwargs)
        return await with_timeout(started, self._episode.rules.config.tool_timeout)

    async def _attempt(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Await `method`; if it fails or takes too long, set the row's `error`, return None."""
        episode = self._episode
        try:
            work = method(episode.name, *args, **kwargs)
            return await with_timeout(work, episode.rules.config.tool_timeout)
        except Exception as failure:
            episode.error = episode.error or f"{self._name}: {type(failure).__name__}: {failure}"
            return None


class RowTool(_RowPart):
    """One verl tool in one row."""

    def __init__(self, tool: Any, episode: Episode) -> None:
        super().__init__(tool.name, episode)
        self._tool = tool
        self._kwargs = episode.tools_kwargs.get(tool.name, {})

    async def create(self) -> None:
        """Create the tool."""
        kwargs = self._kwargs.get("create_kwargs", {})
        _, response = await self._start(self._tool.create, **kwargs)
        if not response.is_empty():
            raise ToolError(f"{self._name}: create() returns a message, which is not supported.")

    async def reward(self) -> tuple[str, Any]:
        """Return the tool's name and its `calc_reward`; None if that fails."""
        kwargs = self._kwargs.get("calc_reward_kwargs", {})
        return self._name, await self._attempt(self._tool.calc_reward, **kwargs)

    async def release(self) -> None:
        """Release the tool if it was created."""
        if self._started:
            await self._attempt(self._tool.release, **self._kwargs.get("release_kwargs", {}))


class RowInteraction(_RowPart):
    """One interaction in one row, which it asks for the user's messages."""

    def __init__(self, name: str, interaction: Any, episode: Episode) -> None:
        super().__init__(name, episode)
        self._interaction = interaction

    async def start(self) -> None:
        """Start the interaction."""
        await self._start(self._interaction.start_interaction, **self._episode.interaction_kwargs)

    async def respond(self) -> tuple[bool, str, float | None]:
        """Return whether the conversation is over, the user's next message, and its reward."""
        messages = [{"role": m["role"], "content": m["content"]} for m in self._episode.messages]
        respond, kwargs = self._interaction.generate_response, self._episode.interaction_kwargs
        response = await self._attempt(respond, messages, **kwargs)
        done, content, reward, _ = response or (True, "", None, {})
        return done, content, reward

    async def finalize(self) -> None:
        """Finalize it if it was started and overrides verl's method, which takes no instance."""
        from verl.interactions.base import BaseInteraction

        method = type(self._interaction).finalize_interaction
        if self._started and method is not BaseInteraction.finalize_interaction:
            await self._attempt(self._interaction.finalize_interaction)
