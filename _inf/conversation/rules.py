"""What all conversations of a call share: tools, template and limits; and how answers are read."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from _inf.config import Config
from _inf.parts.found import readers
from _inf.parts.part import Readers
from _inf.parts.reasoning import said
from _inf.request.special_tokens import escaped_json
from _inf.request.tool_template import ToolTemplate
from _inf.response.decode import answer_text, decoded_text
from _inf.tools.results import text_only
from _inf.types import JSON, ModelInfo, RequestOutput, Tool

if TYPE_CHECKING:
    from _inf.response.thoughts import Thoughts
    from _inf.tools.parsing import Parsed

DEFAULT_INTERACTION = "gsm8k"  # verl's default if `interaction_kwargs` has no name
THOUGHT_ENDS = "</think>"


@dataclasses.dataclass(frozen=True)
class Rules:
    """What all rows of a call share. `config` has the limits, where None is no limit; `template` is
    None if a server renders; interactions: verl's, by name."""

    tools: Mapping[str, Tool]
    template: ToolTemplate | None
    config: Config
    model: ModelInfo
    interactions: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def readers(self) -> Readers:
        """What reads a message's content besides text."""
        return readers(self.config)

    @property
    def schemas(self) -> list[Mapping[str, object]]:
        """Those of all tools."""
        return [tool.schema for tool in self.tools.values()]

    @functools.cached_property
    def thoughts(self) -> Thoughts | None:
        """How answers are split into thoughts and content; None if they are not."""
        from _inf.response.thoughts import thoughts_of

        return thoughts_of(self.config, self.model)

    def escape_special_tokens(self, text: str) -> str:
        """Break the special tokens in a tool's or a user's text; those of a server that renders are
        not known."""
        return text if self.template is None else self.template.escape_special_tokens(text)

    def read(self, content: Sequence[JSON]) -> list[JSON]:
        """A tool's result that has more than text, as the model gets it. Raises `PromptError`."""
        kind = next(part["type"] for part in content if part["type"] != "text")
        reader = self.readers.get(kind)
        return text_only(content) if reader is None else reader.of_tool(content, self.model)

    def with_escaped(self, text: str | list[JSON], added: str) -> str | list[JSON]:
        """Put escaped text at the end of a message's content that is not; no special token begins
        in the first and ends in the second."""
        if not isinstance(text, str):
            return [*text, {"type": "text", "text": self.escape_special_tokens(added)}]
        escape, added = self.escape_special_tokens, self.escape_special_tokens(added)
        joined = escape(text) + added
        return f"{text}{added}" if escape(joined) == joined else f"{text} {added}"


def rules_for(
    tools: Sequence[Tool], kwargs: Mapping[str, object], config: Config, model: ModelInfo
) -> Rules:
    """Return the rules of a call with these tools. kwargs: of `apply_chat_template`."""
    template = None
    if model.tokenizer is not None:
        schemas, instructions = _shown_to_the_model(tools, config, model) if tools else ((), "")
        template = ToolTemplate(
            model.tokenizer,
            kwargs,
            eos_token_ids=model.eos_token_ids,
            schemas=schemas,
            instructions=instructions,
        )
    return Rules({tool.name: tool for tool in tools}, template, config, model)


def _shown_to_the_model(
    tools: Sequence[Tool], config: Config, model: ModelInfo
) -> tuple[Sequence[JSON], str]:
    """Return the schemas and instructions of a template that shows these tools."""
    from _inf.tools.parsing import tool_instructions

    shown = [
        dataclasses.replace(tool, schema=escaped_json(tool.schema, model.tokenizer))
        if tool.of_server
        else tool
        for tool in tools
    ]
    instructions = tool_instructions(shown, config.rollout.multi_turn.format)
    return [tool.schema for tool in shown], instructions


def answered_calls(
    answer: RequestOutput, rules: Rules, before: Sequence[int], *, constrained: bool
) -> Parsed:
    """Split an answer into its thought, its content and its calls. before: the ids that it
    followed; constrained: a grammar made it. An answer that was cut by a limit has no calls."""
    from _inf.tools.parsing import Parsed

    tokenizer, thoughts = rules.model.tokenizer, rules.thoughts
    inside = thoughts is not None and thoughts.inside(before, constrained=constrained)
    shown = {} if thoughts is None else thoughts.shown
    visible = answer_text(answer, tokenizer, skip_special_tokens=True, shown=shown)
    server = said(answer)
    whole = Parsed(visible, [], server.reasoning)
    if thoughts is not None and not server.reasoning:
        thought, content, _ = thoughts.split(visible, inside=inside)
        whole = Parsed(content, [], thought)
    if answer.finish_reason == "length" or not rules.tools:
        return whole
    if answer.text is not None:
        return dataclasses.replace(whole, calls=list(server.calls))
    raw = answer_text(answer, tokenizer, skip_special_tokens=False)
    if isinstance(answer.matched_stop, str):  # it may be the end of a call
        raw += answer.matched_stop
    elif answer.matched_stop in rules.model.eos_token_ids:  # special tokens may belong to a call
        raw = decoded_text(answer.token_ids[:-1], tokenizer, skip_special_tokens=False)
    return _with_calls(raw, whole, rules, inside=inside)


def _with_calls(raw: str, whole: Parsed, rules: Rules, *, inside: bool) -> Parsed:
    """Return the calls in the text of an answer, special tokens included, and what is outside them;
    `whole` if there are none. Calls in a thought do not count, unless the answer ends in it."""
    from _inf.tools.parsing import Parsed, parse

    format, tools = rules.config.rollout.multi_turn.format, list(rules.tools.values())
    if rules.thoughts is None:
        thought, end, text = raw.rpartition(THOUGHT_ENDS)
        parsed = parse(text, format, tools)
        return Parsed(thought + end + parsed.content, parsed.calls) if parsed.calls else whole
    thought, content, thinking = rules.thoughts.split(raw, inside=inside)
    parsed = parse(thought if thinking else content, format, tools)
    if not parsed.calls:
        return whole
    if thinking:
        return Parsed("", parsed.calls, parsed.content)
    return Parsed(parsed.content, parsed.calls, whole.reasoning)
