"""Plans how the rows of a call are answered: by one plain turn each, or by a loop of turns. A call
without turns imports nothing for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _inf.config import Config
from _inf.conversation.rules import Plan, rules_for
from _inf.request.sampling import Sampling
from _inf.types import ModelInfo

if TYPE_CHECKING:
    from _inf.conversation.configured import Configured


def plan_call(sampling: Sampling, config: Config, configured: Configured, model: ModelInfo) -> Plan:
    """Plan a call with its own `tools`, or the configured ones.

    Raises `ConfigError` and `ToolError` about keywords that do not fit together.
    """
    tools = configured.tools if sampling.tools is None else sampling.tools
    if not (tools or sampling.asks_for_turns):
        rules = rules_for((), sampling.template_kwargs, config, model)
        return Plan(rules, [rules] * len(sampling.turns))
    from _inf.conversation.turn_plan import plan_turns

    return plan_turns(tools, sampling, config, configured, model)
