"""Answers a line whose `tool_choice` asks for a call, as `inf serve` does: by a grammar."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from _inf.apps.batch.lines import Job
from _inf.apps.serve.calls import served_call
from _inf.apps.serve.choice import forced_call
from _inf.response.output import GenerationOutput

if TYPE_CHECKING:
    from inf import InferenceEngine


async def answer_with_call(
    engine: InferenceEngine, job: Job, params: Mapping[str, Any]
) -> GenerationOutput:
    """Answer `job`, whose `tool_choice` is not None. The row has the call in `tool_calls`, or the
    text of a call that was cut. Raises what `generate` does."""
    output = await served_call(engine, [job.prompt], params, tool_choice=job.tool_choice).answer()
    calls = [forced_call(text) for text in output.completions]
    return dataclasses.replace(
        output,
        tool_calls=calls,
        completions=[
            "" if call else text for call, text in zip(calls, output.completions, strict=True)
        ],
        metadata=[
            {**about, "finish_reason": "tool_calls"} if call else about
            for call, about in zip(calls, output.metadata, strict=True)
        ],
    )
