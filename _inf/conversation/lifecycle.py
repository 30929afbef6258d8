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
from _inf.tools.execution import bounded


async def noted(
    episode: Episode, name: str, method: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Await `method`; if it fails or takes too long, set the episode's `error`, return None."""
    try:
        return await bounded(method(*args, **kwargs), episode.rules.config.tool_timeout)
    except Exception as failure:
        episode.error = episode.error or f"{name}: {type(failure).__name__}: {failure}"
        return None


class RowTool:
    """One verl tool in one row."""

    def __init__(self, tool: Any, episode: Episode) -> None:
        self._tool = tool
        self._episode = episode
        self._kwargs = episode.tools_kwargs.get(tool.name, {})
        self._created = False

    async def create(self) -> None:
        """Create the tool; a failure ends the row before its first turn."""
        episode, self._created = self._episode, True
        created = self._tool.create(episode.name, **self._kwargs.get("create_kwargs", {}))
        _, response = await bounded(created, episode.rules.config.tool_timeout)
        if not response.is_empty():
            raise ToolError(
                f"{self._tool.name}: create() returns a message, which is not supported."
            )

    async def reward(self) -> tuple[str, Any]:
        """Return the tool's name and its `calc_reward`; None if that fails."""
        kwargs = self._kwargs.get("calc_reward_kwargs", {})
        tool, episode = self._tool, self._episode
        return tool.name, await noted(episode, tool.name, tool.calc_reward, episode.name, **kwargs)

    async def release(self) -> None:
        """Release the tool if it was created."""
        if self._created:
            kwargs = self._kwargs.get("release_kwargs", {})
            tool, episode = self._tool, self._episode
            await noted(episode, tool.name, tool.release, episode.name, **kwargs)


class RowInteraction:
    """Starts an interaction for one row, asks it for user messages, and finalizes it."""

    def __init__(self, name: str, interaction: Any, episode: Episode) -> None:
        self._name = name
        self._interaction = interaction
        self._episode = episode
        self._started = False

    async def start(self) -> None:
        """Start the interaction; a failure ends the row before its first turn."""
        episode, self._started = self._episode, True
        started = self._interaction.start_interaction(episode.name, **episode.interaction_kwargs)
        await bounded(started, episode.rules.config.tool_timeout)

    async def respond(self) -> tuple[bool, str, float | None]:
        """Return whether the conversation is over, the user's next message, and its reward."""
        episode = self._episode
        messages = [{"role": m["role"], "content": m["content"]} for m in episode.messages]
        response = await noted(
            episode,
            self._name,
            self._interaction.generate_response,
            episode.name,
            messages,
            **episode.interaction_kwargs,
        )
        done, content, reward, _ = response or (True, "", None, {})
        return done, content, reward

    async def finalize(self) -> None:
        """Finalize it if it was started and overrides verl's method, which takes no instance."""
        from verl.interactions.base import BaseInteraction

        method = type(self._interaction).finalize_interaction
        if self._started and method is not BaseInteraction.finalize_interaction:
            finalize = self._interaction.finalize_interaction
            await noted(self._episode, self._name, finalize, self._episode.name)
