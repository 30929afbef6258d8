"""Runs jobs on an engine and writes the rows into an `OutputFile`, with constant memory: a fixed
number of jobs run at once, and each row is written when its call is finished."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from _inf.apps.batch.lines import BadLine, Job, error_row, parse, read_lines
from _inf.apps.batch.output_file import OutputFile, is_error
from _inf.apps.rendered_call import rendered_call
from _inf.apps.tally import Tally
from _inf.apps.tool_choice import forced_calls
from _inf.config import Config
from _inf.errors import ConfigError, GenerationTimeout, PromptError, RequestFailure, ToolError
from _inf.parts.typed import GenerateParams
from _inf.request.seeds import prompt_seed
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.runtime import quiet
from _inf.turns import Transcript

if TYPE_CHECKING:
    from inf import InferenceEngine

LINES_ON_CPU = 128  # two lines are in flight for each row that runs at once: one waits
MAX_CALLS = 512  # InferenceEngine's threads
UNFINISHED = "the row was aborted before its answer was complete"  # when nothing says why
REFUSALS = (PromptError, ConfigError, ToolError)  # of a line's own request
# Which code an error row has for the exception that a row's error names first.
REFUSED, FAILED = {"PromptError", "PromptTooLongError", "ConfigError"}, "RequestFailure"

Keep = Callable[
    [int, Mapping[str, object], int], None
]  # called with a line, its row and its tokens
OnError = Callable[[int, str], None]  # called with a line and the reason
Answer = tuple[dict[str, object], int]  # a job's row and its tokens


def unanswered(source: Path, out: OutputFile) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines of `source` without an answer, except bad lines that have an error
    row already."""
    for line, text in read_lines(source):
        if out.has_answer(line) or (out.has_row(line) and isinstance(parse(text, line), BadLine)):
            continue
        yield line, text


def lines_at_once(config: Config, on_cpu: bool) -> int:
    rows = config.rollout.max_num_seqs
    return min(LINES_ON_CPU, 2 * rows) if on_cpu else min(MAX_CALLS, rows)


async def answer_each(
    engine: InferenceEngine, jobs: Iterable[Job | BadLine], params: Mapping[str, object], keep: Keep
) -> None:
    """Answer jobs, and call `keep` for each when it is finished.

    params: for all jobs; a job's own override them. A job that cannot be answered gets a row with
    the reason. Raises errors that end the run: `EngineDeadError`, a full disk.
    """
    engine.generate([], **cast(GenerateParams, params))  # refuse wrong ones once, not per line
    waiting = iter(jobs)

    async def worker() -> None:
        for job in waiting:  # shared: a free worker takes the next job
            keep(job.line, *await answer(engine, job, params))

    with no_warnings_of_rows():
        at_once = lines_at_once(engine.config, engine.on_cpu)
        await asyncio.gather(*(worker() for _ in range(at_once)))


@contextlib.contextmanager
def no_warnings_of_rows() -> Iterator[None]:
    """Hide warnings of a greedy line's equal samples, and of what the written rows say: failures
    (`error`) and ids of agent loops (`unsampled_ids`)."""
    with contextlib.ExitStack() as stack:
        for beginning in ("n: ", "rows: ", "agent loop "):
            stack.enter_context(quiet.no_warnings(beginning))
        yield


def keep_in(out: OutputFile, tally: Tally, on_error: OnError) -> Keep:
    def keep(line: int, row: Mapping[str, Any], tokens: int) -> None:
        out.append(line, row)
        tally.add(done=1, tokens=tokens)
        if is_error(row):
            on_error(line, row["error"]["message"])

    return keep


async def answer(
    engine: InferenceEngine, job: Job | BadLine, params: Mapping[str, object]
) -> Answer:
    """Answer a job; return its row, maybe of an error, and its tokens. Raises errors that would end
    every other job too."""
    if isinstance(job, BadLine):
        return error_row(job, "invalid_request", job.reason), 0
    try:
        output = await _answer(engine, job, params)
    except GenerationTimeout as failure:
        return error_row(job, "timeout", str(failure)), 0
    except RequestFailure as failure:
        return error_row(job, "server_error", str(failure)), 0
    except REFUSALS as failure:
        return error_row(job, "invalid_request", failure.for_one_prompt()), 0
    for row in output:
        if row.finish_reason == "abort":
            return error_row(job, *_error(row)), 0
    return job.row(output), sum(row.completion_tokens for row in output)


async def _answer(engine: InferenceEngine, job: Job, params: Mapping[str, Any]) -> GenerationOutput:
    own = {**params, "n": 1, **job.params, "progress": False, "on_error": "row"}
    if "seed" not in job.params:
        own["seed"] = prompt_seed(params.get("seed"), job.line - 1)  # as in one call
    if job.tool_choice is None:
        return await engine.agenerate(job.prompt, **cast(GenerateParams, own))
    # By a grammar, or with tools that are shown only, as `inf serve` does.
    call = rendered_call(engine, [job.prompt], own, job.tool_choice)
    output = await call.answer()
    return GenerationOutput([_with_call(row) for row in output]) if call.forced else output


def _error(row: GenerationRow) -> tuple[str, str]:
    """The code and the reason of a row that was aborted."""
    reason, transcript = row.error or "", row.transcript or Transcript()
    kind, _, said = reason.partition(": ")
    if kind in REFUSED:
        return "invalid_request", said.replace(f"prompt {row.prompt_index}", "the prompt", 1)
    if kind == FAILED and row.transcript is None:
        return "server_error", said
    if transcript.agent_loop and reason:
        return "agent_loop_error", f"agent loop {transcript.agent_loop}: {reason}"
    why = f": {transcript.limit}" if transcript.limit else ""
    return "aborted", reason or f"{UNFINISHED}{why}."


def _with_call(row: GenerationRow) -> GenerationRow:
    calls = forced_calls(row.completion)
    if not calls:
        return dataclasses.replace(row, tool_calls=[])
    return dataclasses.replace(row, tool_calls=calls, completion="", finish_reason="tool_calls")
