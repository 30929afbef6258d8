"""Turns a call's tools and the config into the rules and the episodes of its conversations.

In: checked parameters (`Sampling`), tokenized prompts, the config. Out: a `Template` that shows the
tools, and an `Episode` per row. Refuses calls that no conversation can serve.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from _inf.config import Config
from _inf.conversation.episode import DEFAULT_INTERACTION, Episode, Rules, answered_calls
from _inf.errors import ConfigError, PromptError, ToolError, did_you_mean, shown
from _inf.request.sampling import Sampling
from _inf.request.template import Template
from _inf.tools.parsing import tool_instructions
from _inf.types import ModelInfo, Prompt, Request, RequestOutput, Tokenizer, Tool, TurnOptions

UNLIMITED = 2**31 - 1


class Converses(Protocol):
    """The part of a backend that a plan needs."""

    model: ModelInfo
    tools: Sequence[Tool]
    interactions: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class ConversationPlan:
    """The template and rules of a call's conversations. rules: None if the call has one turn and no
    tools."""

    template: Template
    rules: Rules | None
    tokenizer: Tokenizer

    @classmethod
    def of(cls, sampling: Sampling, config: Config, backend: Converses) -> ConversationPlan:
        """Build the plan; a call without `tools` uses the backend's tools."""
        model, interactions = backend.model, backend.interactions
        named = backend.tools if sampling.tools is None else sampling.tools
        rules = _rules(sampling, config, model, {t.name: t for t in named}, interactions)
        tools = list(rules.tools.values()) if rules else []
        template = Template(
            model.tokenizer,
            sampling.chat_template_kwargs,
            schemas=[tool.schema for tool in tools],
            instructions=tool_instructions(tools, rules.format) if rules and tools else "",
            eos_token_ids=model.eos_token_ids,
        )
        if any(tool.executable for tool in tools):
            template.check_turns()
        return cls(template, rules, model.tokenizer)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse token ids and plain text in a call with tools or interactions."""
        for index, prompt in enumerate(prompts if self.rules else ()):
            if prompt.messages is None:
                raise PromptError(
                    f"prompt {index}: prompt_token_ids or text beside tools or interactions, which "
                    "add messages; send messages, or tools=[]."
                )

    def episodes(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Episode]:
        """Return one episode per row; the `n` samples of a prompt are next to each other."""
        if self.rules is None:
            return []
        return [
            Episode(
                prompts[row // sampling.n],
                params,
                self.rules,
                self.template,
                self.tokenizer,
                turns=sampling.turns[row // sampling.n],
            )
            for row, params in enumerate(sampling.rows())
        ]

    def check_one_turn(self, sampling: Sampling) -> None:
        """Raise if `stream` cannot serve the call: tools would run, or there is an interaction."""
        if self.rules is None:
            return
        if any(turns.max_tokens_per_turn is not None for turns in sampling.turns):
            raise ConfigError("max_tokens_per_turn: stream() has one turn; use max_tokens.")
        for name, tool in self.rules.tools.items():
            if tool.executable:
                raise ToolError(
                    f"tools: {name} would run; stream() takes schemas only: use generate(), or "
                    "pass tools=[]."
                )
        if not self.rules.tools:
            raise ConfigError("interaction_kwargs: stream() has one turn; use generate().")

    def finish_reason(self, row: RequestOutput) -> str | None:
        """The finish reason of a finished streamed row: `tool_calls` if it has calls."""
        if row.finish_reason != "stop" or self.rules is None:
            return row.finish_reason
        calls = answered_calls(row, self.rules, self.tokenizer).calls
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
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(sampling, name):
                raise ConfigError(f"{name}: stream() does not give them; use generate().")
        self.plan.check_one_turn(sampling)
        [request] = self.requests()
        return request

    def requests(self) -> list[Request]:
        """Return one request per row; for a conversation, that of its first turn."""
        n = self.sampling.n
        return [
            Request(self.prompts[row // n].token_ids, params)
            for row, params in enumerate(self.sampling.rows())
        ]


def _rules(
    sampling: Sampling,
    config: Config,
    model: ModelInfo,
    tools: Mapping[str, Tool],
    interactions: Collection[str],
) -> Rules | None:
    for turns in sampling.turns:
        _check_turns(turns, tools, interactions)
    if not tools and not any(turns.interaction_kwargs for turns in sampling.turns):
        if any(turns.max_tokens_per_turn is not None for turns in sampling.turns):
            raise ConfigError(
                "max_tokens_per_turn: without tools or interactions there is one turn; "
                "use max_tokens."
            )
        return None
    one_turn = {
        "json_schema": any(params.json_schema is not None for params in sampling.params),
        "regex": any(params.regex is not None for params in sampling.params),
        "prompt_logprobs": sampling.prompt_logprobs,
        "logprobs": sampling.logprobs > 0,
    }
    for name, asked in one_turn.items():
        if asked:
            _refuse_beside(name, tools, sampling)
    multi_turn = config.rollout.multi_turn
    return Rules(
        tools=tools,
        format=multi_turn.format,
        max_assistant_turns=multi_turn.max_assistant_turns or UNLIMITED,
        max_user_turns=multi_turn.max_user_turns or UNLIMITED,
        max_parallel_calls=multi_turn.max_parallel_calls,
        max_result=multi_turn.max_tool_response_length,
        truncate_side=multi_turn.tool_response_truncate_side,
        tool_timeout=config.tool_timeout,
        response_length=config.rollout.response_length,
        max_model_len=model.limits.total,
        vocabulary=model.limits.vocabulary,
        over_sample_rate=config.rollout.over_sample_rate,
        eos_token_ids=model.eos_token_ids,
    )


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
        return f"interaction_kwargs.name: {shown(kwargs['name'])} is no interaction; {there}"
    near = difflib.get_close_matches("name", kwargs, n=1)
    hint = f" ({near[0]!r} is given)" if near else ""
    return f"interaction_kwargs: the key 'name' is missing{hint}; {there}"
