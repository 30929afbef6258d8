"""Answers a line whose `tool_choice` asks for a call, as `inf serve` does: by a grammar.

In: a `Job` and `generate`'s keywords. Out: a `GenerationOutput` whose rows have the call in
`tool_calls`, or the text of a call that was cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from _inf.apps.batch.lines import Job
from _inf.apps.openai_format import BadRequest
from _inf.apps.serve.calls import call_schema
from _inf.apps.serve.choice import forced_call
from _inf.conversation.rules import rules_for
from _inf.request.keywords import GenerateParams
from _inf.request.prompts import normalize
from _inf.request.tokenize import tokenize
from _inf.request.values import template_kwargs
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.tools.definition import as_tools

if TYPE_CHECKING:
    from inf import InferenceEngine


async def answer_with_call(
    engine: InferenceEngine, job: Job, params: Mapping[str, Any]
) -> GenerationOutput:
    """Answer `job`, whose `tool_choice` is not None.

    Raises what `generate` does, and `BadRequest` for tools from which there is nothing to choose.
    """
    assert job.tool_choice is not None
    keywords = dict(params)
    tools, name = as_tools(keywords.pop("tools", [])), "chat_template_kwargs"
    kwargs = template_kwargs(name, keywords.pop(name, {}))
    rules = rules_for(tools, kwargs, engine.config, engine.model)
    if rules.template is None:
        raise BadRequest("tool_choice: the server takes and gives text; set tokenizer_path")
    schema = call_schema(job.tool_choice, tools, keywords)
    limits = engine.model.limits.truncating(keywords.pop("truncate_prompt", None))
    [prompt] = tokenize(normalize([job.prompt]), rules.template, limits)
    # The template shows the tools already, and a grammar cannot be used beside them.
    keywords |= {"tools": [], "json_schema": schema}
    output = await engine.agenerate(
        {"prompt_token_ids": prompt.token_ids}, **cast(GenerateParams, keywords)
    )
    return GenerationOutput([_with_call(row) for row in output])


def _with_call(row: GenerationRow) -> GenerationRow:
    calls = forced_call(row.completion)
    if not calls:
        return dataclasses.replace(row, tool_calls=[])
    return dataclasses.replace(row, tool_calls=calls, completion="", finish_reason="tool_calls")
