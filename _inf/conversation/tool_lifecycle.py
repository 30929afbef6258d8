"""Creates verl's tools before a row, computes their rewards after it, and always releases them.

In verl 0.6.1 (`workers/rollout/sglang_rollout/sglang_rollout.py`) an exception in these methods
cancels the whole batch, an aborted row never releases its tools, and nothing has a timeout. Here a
failure only sets the row's `error`.
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
        return await bounded(method(*args, **kwargs), episode.rules.tool_timeout)
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
        _, response = await bounded(created, episode.rules.tool_timeout)
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
