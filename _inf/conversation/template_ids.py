"""The ids that a template makes of a row's messages, and what their content asks of a part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from _inf.errors import PromptError, RequestFailure, at_fault
from _inf.request.messages import reader_of
from _inf.request.sampling import in_order
from _inf.types import Message, SamplingParams

if TYPE_CHECKING:
    from _inf.conversation.rules import Rules
    from _inf.parts.part import Part
    from _inf.request.tool_template import ToolTemplate

    IdsAndPart: TypeAlias = tuple[list[int], Part | None]


def prompt_ids(rules: Rules, template: ToolTemplate, messages: Sequence[Message]) -> IdsAndPart:
    """Those before the first turn, within all limits. Raises `RequestFailure` if the model cannot
    take them."""
    about = "with the row's tools and what they show the prompt"
    try:
        with at_fault(index=0):
            ids, part = _prompt_ids(rules, template, messages)
    except PromptError as failure:
        raise RequestFailure(failure.for_one_prompt()) from failure
    limits = rules.model.limits
    if fault := unknown(ids, rules):
        raise RequestFailure(f"{about} has {fault}")
    for most, key in ((limits.prompt, "prompt_length"), (limits.total - 1, "max_model_len")):
        if len(ids) > most:
            many = f"{len(ids)} tokens; at most {most} fit (rollout.{key})"
            raise RequestFailure(f"{about} has {many}")
    return ids, part


def _prompt_ids(rules: Rules, template: ToolTemplate, messages: Sequence[Message]) -> IdsAndPart:
    reader = reader_of(messages, rules.readers)
    if reader is None:
        return template.prompt(messages, 0), None
    text = template.text(messages, 0)
    read = reader.tokenized(template.tokenizer, text, messages, "prompt 0", first=True)
    template.check_shown(messages, text, 0)
    return read


def ids_after(
    rules: Rules,
    template: ToolTemplate,
    messages: Sequence[Message],
    index: int,
    called: Sequence[Message],
    *,
    ended: bool,
) -> IdsAndPart:
    """Those between the answer at `messages[index]` and the next one; as `ToolTemplate.after`."""
    later = messages[index + 1 :]
    reader = reader_of(later, rules.readers)
    if reader is None:
        return template.after(messages, index, ended=ended, called=called), None
    text = template.text_after(messages, index, called)
    ids, part = reader.tokenized(template.tokenizer, text, later, "the next turn", first=False)
    return template.without_eos(ids) if ended else ids, part


def unknown(ids: Sequence[int], rules: Rules) -> str:
    """What is wrong with ids beyond the vocabulary, of which the engine would die; or ""."""
    found = [token for token in ids if token >= rules.model.limits.vocabulary]
    return f"token {found[0]}, outside the model's vocabulary" if found else ""


def with_part(params: SamplingParams, part: Part | None) -> SamplingParams:
    """The parameters with what all of a row's content asks for."""
    if part is None:
        return params
    others = (each for each in params.parts if type(each) is not type(part))
    return replace(params, parts=in_order((*others, part)))


def with_later_part(
    params: SamplingParams, part: Part | None, before: int, tokens: int
) -> SamplingParams:
    """The parameters of a row of `before` ids with what the content of so many more asks for."""
    if part is None:
        return params
    own = params.of(type(part)) or type(part)()
    return with_part(params, own.followed_by(part, before, tokens))
