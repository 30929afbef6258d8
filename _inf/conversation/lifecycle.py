"""Starts verl's tools and interaction before a row's first turn, and ends them after its last.

In verl 0.6.1 (`workers/rollout/sglang_rollout/sglang_rollout.py`) an exception in their methods
cancels the whole batch, an aborted row never releases its tools, interactions are never finalized,
and nothing has a timeout. Here a failure ends only its row, or only sets the row's `error`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from _inf.conversation.episode import Episode
from _inf.conversation.rules import DEFAULT_INTERACTION
from _inf.errors import ToolError
from _inf.tools.execution import with_timeout


class Lifecycle:
    """The verl tools of one row, and its interaction, if it has one."""

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._tools = [tool.verl for tool in episode.rules.tools.values() if tool.verl]
        self._started: list[Any] = []
        self._kwargs = episode.turns.interaction_kwargs
        self._name = self._kwargs.get("name", DEFAULT_INTERACTION)
        self.interaction: Any = episode.rules.interactions[self._name] if self._kwargs else None

    async def start(self) -> None:
        """Create the tools and start the interaction; a failure ends the row."""
        await asyncio.gather(*map(self._create, self._tools))
        if self.interaction is not None:
            self._started.append(self.interaction)
            await self._call(self.interaction, "start_interaction", **self._kwargs)

    async def _create(self, tool: Any) -> None:
        self._started.append(tool)
        kwargs = self._episode.turns.tool_kwargs(tool.name, "create")
        _, response = await self._call(tool, "create", **kwargs)
        if not response.is_empty():
            raise ToolError(f"{tool.name}: create() returns a message, which is not supported.")

    async def respond(self) -> tuple[bool, str, float | None]:
        """Return whether the conversation is over, the user's next message, and its reward."""
        messages = [{"role": m["role"], "content": m["content"]} for m in self._episode.messages]
        response = await self._attempt(
            self.interaction, "generate_response", messages, **self._kwargs
        )
        done, content, reward, _ = response or (True, "", None, {})
        return done, content, reward

    async def rewards(self) -> dict[str, Any]:
        """Return each tool's `calc_reward`; None if that fails."""
        rewards = await asyncio.gather(*(self._of(tool, "calc_reward") for tool in self._tools))
        return {tool.name: reward for tool, reward in zip(self._tools, rewards, strict=True)}

    async def end(self) -> None:
        """Release the tools that were created, and finalize the interaction if it was started and
        overrides verl's method, which takes no instance."""
        created = [tool for tool in self._tools if tool in self._started]
        await asyncio.gather(*(self._of(tool, "release") for tool in created))
        if self.interaction in self._started:
            from verl.interactions.base import BaseInteraction

            verls = BaseInteraction.finalize_interaction
            if type(self.interaction).finalize_interaction is not verls:
                await self._attempt(self.interaction, "finalize_interaction")

    async def _of(self, tool: Any, method: str) -> Any:
        kwargs = self._episode.turns.tool_kwargs(tool.name, method)
        return await self._attempt(tool, method, **kwargs)

    async def _attempt(self, part: Any, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Await a method; if it fails or takes too long, set the row's `error`, return None."""
        try:
            return await self._call(part, method, *args, **kwargs)
        except Exception as failure:
            name = self._name if part is self.interaction else part.name
            error = f"{name}: {type(failure).__name__}: {failure}"
            self._episode.error = self._episode.error or error
            return None

    async def _call(self, part: Any, method: str, /, *args: Any, **kwargs: Any) -> Any:
        work = getattr(part, method)(self._episode.name, *args, **kwargs)
        return await with_timeout(work, self._episode.rules.config.tool_timeout)
