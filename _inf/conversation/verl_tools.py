"""verl's tools in a row: created before its first turn, rewarded after its last one, released."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from _inf.conversation.episode import Episode
from _inf.conversation.hooks import Hook
from _inf.errors import ToolError, error_text
from _inf.tools.results import executed, shown_part

if TYPE_CHECKING:
    from verl.tools.base_tool import BaseTool


class VerlTools(Hook):
    """The `BaseTool`s of one row."""

    def __init__(self, episode: Episode) -> None:
        super().__init__(episode)
        self._tools = [tool.verl for tool in episode.rules.tools.values() if tool.verl]
        self._created: list[BaseTool] = []

    async def start(self) -> None:
        """Create all tools; raise the first failure once the others are created too, so that they
        can be released. What they say is put at the end of the prompt, as verl does."""
        created = await asyncio.gather(*map(self._create, self._tools), return_exceptions=True)
        texts = {}
        for tool, text in zip(self._tools, created, strict=True):
            if isinstance(text, BaseException):
                raise text
            if text:
                texts[tool.name] = text
        self.episode.add_opening_texts(texts)

    async def _create(self, tool: BaseTool) -> str:
        self._created.append(tool)
        try:
            _, response = await self._call(tool, "create")
            done = executed(response, verl=True)
        except Exception as failure:
            raise ToolError(f"{tool.name}: create(): {error_text(failure)}") from failure
        if done.error is not None:
            raise ToolError(f"{tool.name}: create(): {done.error}")
        if done.content:
            raise ToolError(f"{tool.name}: create(): it returned an image; only execute() may.")
        multi_turn = self.episode.rules.config.rollout.multi_turn
        most, side = multi_turn.max_tool_response_length, multi_turn.tool_response_truncate_side
        return shown_part(done, most, side).text

    async def rewards(self) -> dict[str, object]:
        rewards = await asyncio.gather(*(self._try(tool, "calc_reward") for tool in self._tools))
        return {tool.name: reward for tool, reward in zip(self._tools, rewards, strict=True)}

    async def end(self) -> None:
        """Release the tools that were created."""
        await asyncio.gather(*(self._try(tool, "release") for tool in self._created))

    async def _try(self, tool: BaseTool, method: str) -> object:
        return await self.attempt(tool.name, self._call(tool, method))

    async def _call(self, tool: BaseTool, method: str) -> Any:
        kwargs = self.episode.turns.tool_kwargs(tool.name, method)
        return await self.call_method(tool, method, **kwargs)
