"""Runs jobs on an engine and writes the rows into an `OutputFile`, with constant memory: a fixed
number of jobs run at once, and each row is written when it is finished."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from _inf.apps.batch.lines import BadLine, Job, error_row, parse, read_lines
from _inf.apps.batch.output_file import OutputFile, is_error
from _inf.apps.serve.calls import served_call
from _inf.apps.serve.choice import forced_call
from _inf.apps.tally import Tally
from _inf.config import Config
from _inf.errors import ConfigError, GenerationTimeout, PromptError, RequestFailure, ToolError
from _inf.request.keywords import GenerateParams
from _inf.request.seeds import prompt_seed
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.runtime import quiet

if TYPE_CHECKING:
    from inf import InferenceEngine

CALLS_ON_CPU = 96  # more than rows that run at once there (64): one waits for each place
MAX_CALLS = 512  # InferenceEngine's threads

Keep = Callable[[int, Mapping[str, Any], int], None]  # called with a line, its row and its tokens
OnError = Callable[[int, str], None]  # called with a line and the reason


def unanswered(source: Path, out: OutputFile) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines of `source` without an answer, except bad lines that have an error
    row already."""
    for line, text in read_lines(source):
        if out.has_answer(line) or (out.has_row(line) and isinstance(parse(text, line), BadLine)):
            continue
        yield line, text


def calls_at_once(config: Config, on_cpu: bool) -> int:
    return min(CALLS_ON_CPU if on_cpu else MAX_CALLS, config.rollout.max_num_seqs)


async def answer_each(
    engine: InferenceEngine, jobs: Iterable[Job | BadLine], params: Mapping[str, Any], keep: Keep
) -> None:
    """Answer jobs, and call `keep` for each when it is finished.

    params: for all jobs; a job's own override them. A job that cannot be answered gets a row with
    the reason. Raises errors that end the run: `EngineDeadError`, a full disk.
    """
    engine.generate([], **cast(GenerateParams, params))  # refuse wrong ones once, not per line
    waiting = iter(jobs)

    async def worker() -> None:
        for job in waiting:  # shared: a free worker takes the next job
            keep(job.line, *await answer_one(engine, job, params))

    at_once = calls_at_once(engine.config, engine.on_cpu)
    # A greedy line's equal samples; ids of agent loops, which rows count (`unsampled_ids`).
    with quiet.no_warnings("n: "), quiet.no_warnings("agent loop "):
        await asyncio.gather(*(worker() for _ in range(at_once)))


def keep_in(out: OutputFile, tally: Tally, on_error: OnError) -> Keep:
    def keep(line: int, row: Mapping[str, Any], tokens: int) -> None:
        out.append(line, row)
        tally.add(done=1, tokens=tokens)
        if is_error(row):
            on_error(line, row["error"]["message"])

    return keep


async def answer_one(
    engine: InferenceEngine, job: Job | BadLine, params: Mapping[str, Any]
) -> tuple[dict[str, Any], int]:
    """Return a job's row and its tokens. Raises errors that would end every other job too."""
    if isinstance(job, BadLine):
        return error_row(job, "invalid_request", job.reason), 0
    own = {**params, "n": 1, **job.params, "progress": False}
    if params.get("seed") is not None and "seed" not in job.params:
        own["seed"] = prompt_seed(params["seed"], job.line - 1)  # as in one call
    try:
        if job.tool_choice is None:
            output = await engine.agenerate(job.prompt, **cast(GenerateParams, own))
        else:  # by a grammar, or with tools that are shown only, as `inf serve` does
            call = served_call(engine, [job.prompt], own, job.tool_choice)
            output = await call.answer()
            if call.forced:
                output = GenerationOutput([_with_call(row) for row in output])
    except GenerationTimeout as failure:
        return error_row(job, "timeout", str(failure)), 0
    except RequestFailure as failure:
        return error_row(job, "server_error", str(failure)), 0
    except (PromptError, ConfigError, ToolError) as failure:
        return error_row(job, "invalid_request", failure.for_one_prompt()), 0
    for row in output:
        if (said := row.transcript) is not None and said.agent_loop and said.error:
            reason = f"agent loop {said.agent_loop}: {said.error}"
            return error_row(job, "agent_loop_error", reason), 0
    return job.row(output), sum(row.completion_tokens for row in output)


def _with_call(row: GenerationRow) -> GenerationRow:
    calls = forced_call(row.completion)
    if not calls:
        return dataclasses.replace(row, tool_calls=[])
    return dataclasses.replace(row, tool_calls=calls, completion="", finish_reason="tool_calls")
