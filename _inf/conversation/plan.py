"""Turns a call's tools and the config into the rules and the episodes of its conversations.

In: checked parameters (`Sampling`), tokenized prompts, the config. Out: a `Template` that shows the
tools, and an `Episode` per row. Refuses calls that no conversation can serve.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from _inf.config import Config
from _inf.conversation.episode import Episode
from _inf.conversation.rules import (
    DEFAULT_INTERACTION,
    ConversationBackend,
    Rules,
    answered_calls,
    template_of,
)
from _inf.conversation.text_episode import TextEpisode
from _inf.errors import ConfigError, PromptError, ToolError, did_you_mean, shown
from _inf.request.sampling import Sampling
from _inf.request.template import Template
from _inf.types import Prompt, Request, RequestOutput, SamplingParams, Tool, TurnOptions


@dataclasses.dataclass(frozen=True)
class ConversationPlan:
    """The template and rules of a call's conversations. template: None if a server renders. rules:
    None if the call has one turn and no tools."""

    template: Template | None
    rules: Rules | None

    @classmethod
    def of(
        cls, sampling: Sampling, config: Config, backend: ConversationBackend
    ) -> ConversationPlan:
        """Build the plan; a call without `tools` uses the backend's tools."""
        model, interactions = backend.model, backend.interactions
        tools = list(backend.tools if sampling.tools is None else sampling.tools)
        by_name = {tool.name: tool for tool in tools}
        several = _has_several_turns(sampling, by_name, interactions)
        if model.tokenizer is None:
            return cls(None, Rules(by_name, None, config, model) if several else None)
        template = template_of(tools, sampling.chat_template_kwargs, config, model)
        if any(tool.executable for tool in tools):
            template.check_turns()
        return cls(template, Rules(by_name, template, config, model) if several else None)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse token ids and plain text in a call with tools or interactions."""
        for index, prompt in enumerate(prompts if self.rules else ()):
            if prompt.messages is None:
                raise PromptError(
                    f"prompt {index}: tools and interactions add messages, which prompt_token_ids "
                    "and text do not have; send messages, or pass tools=[]."
                )

    def episodes(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Episode]:
        """Return one episode per row; the `n` samples of a prompt are next to each other."""
        if self.rules is None:
            return []
        n, rows = sampling.n, enumerate(sampling.rows())
        kind = TextEpisode if self.template is None else Episode
        return [kind(prompts[i // n], p, sampling.turns[i // n], self.rules) for i, p in rows]

    def finish_reason(self, row: RequestOutput) -> str | None:
        """The finish reason of a finished streamed row: `tool_calls` if it has calls."""
        if row.finish_reason != "stop" or self.rules is None:
            return row.finish_reason
        calls = answered_calls(row, self.rules).calls
        return "tool_calls" if calls else "stop"


@dataclasses.dataclass(frozen=True)
class PreparedCall:
    """A completely checked call; nothing in it is refused after the first request is sent."""

    prompts: list[Prompt]
    sampling: Sampling
    plan: ConversationPlan

    @property
    def rows(self) -> int:
        """The number of rows that the call returns."""
        return len(self.prompts) * self.sampling.n

    def streamed_request(self) -> Request:
        """Return the single request of a `stream` call, or raise if `stream` cannot serve it."""
        sampling = self.sampling
        if len(self.prompts) != 1:
            count = len(self.prompts)
            raise PromptError(f"prompt 0: stream() takes one prompt, not {count}; use generate().")
        if sampling.n != 1:
            raise ConfigError(f"n: stream() gives one answer, not {sampling.n}; use generate().")
        if sampling.asks("prompt_logprobs"):
            raise ConfigError("prompt_logprobs: stream() does not give them; use generate().")
        for name in ("sampling_mask", "return_routed_experts"):
            if sampling.asks(name):
                raise ConfigError(f"{name}: stream() does not give it; use generate().")
        if any(params.num_beams > 1 for params in sampling.params):
            raise ConfigError("num_beams: a beam is known at its end only; use generate().")
        if any(turns.max_tokens_per_turn is not None for turns in sampling.turns):
            raise ConfigError("max_tokens_per_turn: stream() has one turn; use max_tokens.")
        if any(turns.interaction_kwargs for turns in sampling.turns):
            raise ConfigError("interaction_kwargs: stream() has one turn; use generate().")
        for name, tool in self.plan.rules.tools.items() if self.plan.rules else ():
            if tool.executable:
                raise ToolError(
                    f"tools: {name} would run; stream() takes schemas only: use generate(), or "
                    "pass tools=[]."
                )
        [request] = self.requests()
        return request

    def requests(self) -> list[Request]:
        """Return one request per row; for a conversation, that of its first turn."""
        n, rules = self.sampling.n, self.plan.rules
        rows = ((self.prompts[row // n], p, row // n) for row, p in enumerate(self.sampling.rows()))
        if self.plan.template is not None:
            return [Request(prompt.token_ids, params, index) for prompt, params, index in rows]
        tools = [tool.schema for tool in rules.tools.values()] if rules else []
        return [
            Request([], params, index, prompt.messages, prompt.text, tools)
            for prompt, params, index in rows
        ]


ONE_TURN = (
    "json_schema",
    "regex",
    "prompt_logprobs",
    "logprobs",
    "sampling_mask",
    "return_routed_experts",
    "num_beams",
)


def _has_several_turns(
    sampling: Sampling, tools: Mapping[str, Tool], interactions: Collection[str]
) -> bool:
    """Whether a call has tools or an interaction; refuse keywords that do not fit to it."""
    for turns in sampling.turns:
        _check_turns(turns, tools, interactions)
    if not tools and not any(turns.interaction_kwargs for turns in sampling.turns):
        if any(turns.max_tokens_per_turn is not None for turns in sampling.turns):
            raise ConfigError(
                "max_tokens_per_turn: without tools or interactions there is one turn; "
                "use max_tokens."
            )
        return False
    for name in ONE_TURN:
        default = getattr(SamplingParams, name)
        if any(getattr(params, name) != default for params in sampling.params):
            _refuse_beside(name, tools, sampling)
    return True


def _refuse_beside(name: str, tools: Collection[str], sampling: Sampling) -> None:
    """Refuse `name`, which needs a call of one turn; name what makes more turns."""
    asked = any(turns.interaction_kwargs for turns in sampling.turns)
    why, instead = [], []
    if tools:
        why.append(f"tools ({', '.join(tools)})")
        instead.append("pass tools=[]")
    if asked:
        why.append("interaction_kwargs")
        instead.append("leave interaction_kwargs out")
    raise ConfigError(f"{name}: cannot be used with {' and '.join(why)}; {' and '.join(instead)}.")


def _check_turns(
    turns: TurnOptions, tools: Mapping[str, Tool], interactions: Collection[str]
) -> None:
    for name, kwargs in turns.tools_kwargs.items():
        if name not in tools:
            hint = did_you_mean(name, tools) or f"; there are {', '.join(tools) or 'none'}."
            raise ConfigError(f"tools_kwargs.{name}: this call has no such tool{hint}")
        if kwargs and tools[name].verl is None:
            raise ConfigError(f"tools_kwargs.{name}: {', '.join(kwargs)} need a verl tool.")
    if turns.interaction_kwargs:
        if not interactions:
            raise ConfigError(
                "interaction_kwargs: no interaction is configured; "
                "set rollout.multi_turn.interaction_config_path."
            )
        named = turns.interaction_kwargs.get("name", DEFAULT_INTERACTION)
        if named not in list(interactions):  # `named` may be of any type
            raise ConfigError(_unknown_interaction(turns.interaction_kwargs, interactions))


def _unknown_interaction(kwargs: Mapping[str, Any], interactions: Collection[str]) -> str:
    there = f"the interactions are {', '.join(interactions)}."
    if "name" in kwargs:
        return f"interaction_kwargs.name: {shown(kwargs['name'])} is not an interaction; {there}"
    near = difflib.get_close_matches("name", kwargs, n=1)
    hint = f" ({near[0]!r} is given)" if near else ""
    return f"interaction_kwargs: the key 'name' is missing{hint}; {there}"
