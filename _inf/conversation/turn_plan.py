"""Plans a call that has tools or keywords of conversations, agent loops or environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from _inf.config import Config
from _inf.conversation.rules import DEFAULT_INTERACTION, Rules, rules_for
from _inf.errors import ConfigError, did_you_mean, shown
from _inf.request.keywords import refuse, refuse_beside_loop
from _inf.request.sampling import Sampling
from _inf.turns import TurnOptions
from _inf.types import ModelInfo, Tool

if TYPE_CHECKING:
    from _inf.conversation.configured import Configured
    from _inf.conversation.environments import EnvironmentKind
    from _inf.conversation.row import Loop


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the rows of a call with turns are answered.

    rules: with all tools of the call; of_prompts: those of each prompt's rows. loops: what answers
    the rows of each prompt; none for a stream, whose tools only the model sees.
    """

    rules: Rules
    of_prompts: Sequence[Rules]
    loops: Sequence[Loop] = ()


def plan_turns(
    sampling: Sampling, config: Config, configured: Configured, model: ModelInfo
) -> Plan:
    """Plan a call that has tools or keywords of conversations, agent loops or environments.

    Raises `ConfigError` and `ToolError` about keywords that do not fit together.
    """
    tools = configured.tools if sampling.tools is None else sampling.tools
    loops: Sequence[Loop] = ()
    refuse_beside_loop(sampling.asked)
    if "agent_loop" in sampling.asked:
        tools = []
        loops = configured.agent_loops(config).of_call(sampling, config, model)
    elif "agent_kwargs" in sampling.asked:
        raise ConfigError.of("agent_kwargs", "no agent loop runs; set agent_loop.")
    rules = _rules(tools, sampling, config, model)
    check_turns(sampling, rules.tools, configured.interactions)
    rules = dataclasses.replace(rules, interactions=configured.interactions)
    kinds: Sequence[EnvironmentKind] = ()
    if "environment_factory" in sampling.asked or "environment_kwargs" in sampling.asked:
        from _inf.conversation.environments import environment_kinds

        kinds = environment_kinds(sampling.turns, config.tool_timeout)
    of_prompts = prompt_rules(rules, sampling, kinds)
    if not loops and (rules.tools or kinds or "interaction_kwargs" in sampling.asked):
        from _inf.conversation.tool_loop import ToolLoop

        loops = [
            ToolLoop(of_prompts[index], turns, kinds[index] if kinds else None)
            for index, turns in enumerate(sampling.turns)
        ]
    return Plan(rules, of_prompts, loops)


def _rules(tools: Sequence[Tool], sampling: Sampling, config: Config, model: ModelInfo) -> Rules:
    rules = rules_for(tools, sampling.template_kwargs, config, model)
    if rules.template is not None and any(tool.executable for tool in tools):
        rules.template.check_turns()
    return rules


def prompt_rules(
    rules: Rules, sampling: Sampling, kinds: Sequence[EnvironmentKind]
) -> Sequence[Rules]:
    """Return the rules of each prompt's rows, of which `rules` are those of the call.

    As in verl 0.6.1 (`sglang_rollout.py`, `_preprocess_prompt_to_async_rollout_requests`), a row
    that has `tools_kwargs` has the tools that these name, in their order. Those of its environment
    are beside them.
    """
    made: dict[object, Rules] = {(None, None): rules}
    listed = []
    for index, turns in enumerate(sampling.turns):
        kind = kinds[index] if kinds else None
        names = None if turns.tools_kwargs is None else tuple(turns.tools_kwargs)
        if (key := (names, None if kind is None else id(kind))) not in made:
            tools = [rules.tools[name] for name in (rules.tools if names is None else names)]
            if kind is not None:
                from _inf.tools.definition import as_tools

                tools = as_tools([*tools, *kind.tools])
            own = _rules(tools, sampling, rules.config, rules.model)
            made[key] = dataclasses.replace(own, interactions=rules.interactions)
        listed.append(made[key])
    return listed


def check_turns(
    sampling: Sampling, tools: Mapping[str, Tool], interactions: Collection[str]
) -> None:
    """Refuse keywords that do not fit to the call's tools and interactions."""
    for turns in sampling.turns:
        _check_tools_kwargs(turns, tools)
        _check_interaction(turns, interactions)
    more_turns = {}  # what makes more of them, and how to leave it out
    if tools:
        more_turns[f"tools ({', '.join(tools)})"] = "pass tools=[]"
    for name in ("interaction_kwargs", "environment_factory"):
        if name in sampling.asked:
            more_turns[name] = f"leave {name} out"
    if more_turns:
        causes, remedies = " and ".join(more_turns), " and ".join(more_turns.values())
        refuse("turns", sampling.asked, f"cannot be used with {causes}; {remedies}")
    else:
        refuse("one turn", sampling.asked)


def _check_tools_kwargs(turns: TurnOptions, tools: Mapping[str, Tool]) -> None:
    for name, kwargs in (turns.tools_kwargs or {}).items():
        if name not in tools:
            hint = did_you_mean(name, tools) or f"; there are {', '.join(tools) or 'none'}."
            raise ConfigError.of(f"tools_kwargs.{name}", f"this call has no such tool{hint}")
        if kwargs and tools[name].verl is None:
            raise ConfigError.of(f"tools_kwargs.{name}", f"{', '.join(kwargs)} need a verl tool.")


def _check_interaction(turns: TurnOptions, interactions: Collection[str]) -> None:
    if not turns.interaction_kwargs:
        return
    if not interactions:
        raise ConfigError.of(
            "interaction_kwargs",
            "no interaction is configured; set rollout.multi_turn.interaction_config_path.",
        )
    named = turns.interaction_kwargs.get("name", DEFAULT_INTERACTION)
    if named not in list(interactions):  # `named` may be of any type
        given = ", ".join(turns.interaction_kwargs)
        default = "" if "name" in turns.interaction_kwargs else f", the default next to {given},"
        raise ConfigError.of(
            "interaction_kwargs.name",
            f"{shown(named)}{default} is not an interaction; the "
            f"interactions are {', '.join(interactions)}.",
        )
