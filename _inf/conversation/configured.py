"""What a config names for conversations: tools, interactions and agent loops."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from _inf.config import Config
from _inf.runtime import quiet
from _inf.types import Tool, ToolCall

if TYPE_CHECKING:
    from _inf.conversation.agent_loops.loops import AgentLoops


class Configured:
    """What a config names for conversations, loaded once for an engine. Raises `ConfigError` and
    `ToolError`."""

    def __init__(self, config: Config) -> None:
        self.tools: Sequence[Tool] = []
        self.interactions: Mapping[str, object] = {}
        self.keywords = config.rollout.agent.keywords  # of calls without `tools`
        self._agent_loops: AgentLoops | None = None
        self._format = config.rollout.multi_turn.format
        self._lock = threading.Lock()
        multi_turn, agent = config.rollout.multi_turn, config.rollout.agent
        try:
            with quiet.third_party():
                if multi_turn.tool_config_path:
                    from _inf.tools.loading import load_tools

                    self.tools = load_tools(multi_turn.tool_config_path)
                if multi_turn.interaction_config_path:
                    from _inf.conversation.interactions import load_interactions

                    self.interactions = load_interactions(multi_turn.interaction_config_path)
            if agent.agent_loop_config_path or agent.default:
                self.agent_loops(config)
        except BaseException:
            self.close()
            raise

    def agent_loops(self, config: Config) -> AgentLoops:
        """The agent loops that calls may ask for, by the names of the config and of verl."""
        from _inf.conversation.agent_loops.loops import AgentLoops

        with self._lock:
            self._agent_loops = self._agent_loops or AgentLoops(config)
            return self._agent_loops

    def tool_calls(
        self, text: str, format: str | None, tools: Sequence[object] | None
    ) -> list[ToolCall]:
        """The tool calls in a text. format, tools: None for those of the config."""
        from _inf.tools.definition import as_tools
        from _inf.tools.parsing import parse

        format = format or self._format
        return parse(text, format, self.tools if tools is None else as_tools(tools)).calls

    def close(self) -> None:
        """End the MCP servers of the tools, and the thread of the agent loops; a call that follows
        starts them again."""
        if self.tools:
            from _inf.tools.loading import close_tools

            close_tools(self.tools)
        if self._agent_loops is not None:
            self._agent_loops.thread.stop()
