"""Runs jobs on an engine and writes the rows into an `OutputFile`, with constant memory: a fixed
number of jobs run at once, and each row is written when its call is finished."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from _inf.apps.batch.lines import BadLine, Job, error_row, parse, read_lines
from _inf.apps.batch.output_file import OutputFile, is_error
from _inf.apps.rendered_call import rendered_call
from _inf.apps.tally import Tally
from _inf.apps.tool_choice import forced_calls
from _inf.config import Config
from _inf.errors import ConfigError, GenerationTimeout, PromptError, RequestFailure, ToolError
from _inf.request.keywords import GenerateParams
from _inf.request.seeds import prompt_seed
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.runtime import quiet
from _inf.types import Transcript

if TYPE_CHECKING:
    from inf import InferenceEngine

# On a CPU a call takes milliseconds of the cores that the engine computes on; so it has several
# lines. Two lines are in flight for each row that runs at once: one waits for each place.
LINES_OF_A_CALL = 4
LINES_ON_CPU = 128
CODE = ("tools", "agent_loop", "environment_factory")  # keywords of generate that may run some
MAX_CALLS = 512  # InferenceEngine's threads
UNFINISHED = "the row was aborted before its answer was whole"  # when nothing says why
REFUSALS = (PromptError, ConfigError, ToolError)  # of a line's own request

Keep = Callable[[int, Mapping[str, Any], int], None]  # called with a line, its row and its tokens
OnError = Callable[[int, str], None]  # called with a line and the reason
Answer = tuple[dict[str, Any], int]  # a job's row and its tokens


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


def lines_of_a_call(engine: InferenceEngine, params: Mapping[str, Any]) -> int:
    """One where rows run a user's code: it would run again when another line fails the call."""
    rollout = engine.config.rollout
    runs_code = rollout.multi_turn.enable or rollout.agent.default or any(map(params.get, CODE))
    if runs_code or not engine.on_cpu:
        return 1
    return max(1, min(LINES_OF_A_CALL, lines_at_once(engine.config, True) // 8))


async def answer_each(
    engine: InferenceEngine, jobs: Iterable[Job | BadLine], params: Mapping[str, Any], keep: Keep
) -> None:
    """Answer jobs, and call `keep` for each when it is finished.

    params: for all jobs; a job's own override them. A job that cannot be answered gets a row with
    the reason. Raises errors that end the run: `EngineDeadError`, a full disk.
    """
    engine.generate([], **cast(GenerateParams, params))  # refuse wrong ones once, not per line
    at_once = lines_at_once(engine.config, engine.on_cpu)
    of_a_call = lines_of_a_call(engine, params)
    waiting = in_calls(jobs, params, of_a_call)

    async def worker() -> None:
        for group in waiting:  # shared: a free worker takes the next jobs
            for job, (row, tokens) in zip(group, await answer(engine, group, params), strict=True):
                keep(job.line, row, tokens)

    # A greedy line's equal samples; ids of agent loops, which rows count (`unsampled_ids`).
    with quiet.no_warnings("n: "), quiet.no_warnings("agent loop "):
        await asyncio.gather(*(worker() for _ in range(at_once // of_a_call)))


def in_calls(
    jobs: Iterable[Job | BadLine], params: Mapping[str, Any], most: int
) -> Iterator[list[Job | BadLine]]:
    """Yield the jobs in order, those together that one call can answer. A job with a time limit,
    which is its call's, or with a tool choice is alone."""

    def alike(job: Job | BadLine) -> object:
        if isinstance(job, BadLine) or job.tool_choice is not None:
            return job.line
        timeout = job.params.get("timeout", params.get("timeout"))
        # Not `==`, for which 1 is True, and an order of properties, which a grammar keeps, nothing.
        return repr(job.params) if timeout is None else job.line

    for _, group in itertools.groupby(jobs, alike):
        while together := list(itertools.islice(group, most)):
            yield together


def keep_in(out: OutputFile, tally: Tally, on_error: OnError) -> Keep:
    def keep(line: int, row: Mapping[str, Any], tokens: int) -> None:
        out.append(line, row)
        tally.add(done=1, tokens=tokens)
        if is_error(row):
            on_error(line, row["error"]["message"])

    return keep


async def answer(
    engine: InferenceEngine, jobs: Sequence[Job | BadLine], params: Mapping[str, Any]
) -> list[Answer]:
    """Answer jobs of `in_calls`: in one call, or one by one if that is refused or fails."""
    if len(jobs) == 1:
        return [await answer_one(engine, jobs[0], params)]
    together = cast(list[Job], jobs)
    params_of_each = [_params_of(job, params) for job in together]
    shared = dict(params_of_each[0])
    if shared.get("seed") is not None:
        shared["seed"] = [own["seed"] for own in params_of_each]
    with contextlib.suppress(GenerationTimeout, RequestFailure, *REFUSALS):
        prompts, n = [job.prompt for job in together], shared["n"]
        output = await engine.agenerate(prompts, **cast(GenerateParams, shared))
        return [_answered(job, output[i * n : i * n + n]) for i, job in enumerate(together)]
    return await asyncio.gather(*(answer_one(engine, job, params) for job in jobs))


async def answer_one(
    engine: InferenceEngine, job: Job | BadLine, params: Mapping[str, Any]
) -> Answer:
    """Return a job's row and its tokens. Raises errors that would end every other job too."""
    if isinstance(job, BadLine):
        return error_row(job, "invalid_request", job.reason), 0
    own = _params_of(job, params)
    try:
        if job.tool_choice is None:
            output = await engine.agenerate(job.prompt, **cast(GenerateParams, own))
        else:  # by a grammar, or with tools that are shown only, as `inf serve` does
            call = rendered_call(engine, [job.prompt], own, job.tool_choice)
            output = await call.answer()
            if call.forced:
                output = GenerationOutput([_with_call(row) for row in output])
    except GenerationTimeout as failure:
        return error_row(job, "timeout", str(failure)), 0
    except RequestFailure as failure:
        return error_row(job, "server_error", str(failure)), 0
    except REFUSALS as failure:
        return error_row(job, "invalid_request", failure.for_one_prompt()), 0
    return _answered(job, output)


def _params_of(job: Job, params: Mapping[str, Any]) -> dict[str, Any]:
    own = {**params, "n": 1, **job.params, "progress": False}
    if "seed" not in job.params:
        own["seed"] = prompt_seed(params.get("seed"), job.line - 1)  # as in one call
    return own


def _answered(job: Job, output: GenerationOutput) -> Answer:
    """Return the job's row; one of an error if an answer was aborted, which is then no answer."""
    for row in output:
        if row.finish_reason != "abort":
            continue
        transcript = row.transcript or Transcript()
        if transcript.agent_loop and transcript.error:
            reason = f"agent loop {transcript.agent_loop}: {transcript.error}"
            return error_row(job, "agent_loop_error", reason), 0
        why = f": {transcript.limit}" if transcript.limit else ""
        return error_row(job, "aborted", transcript.error or f"{UNFINISHED}{why}."), 0
    return job.row(output), sum(row.completion_tokens for row in output)


def _with_call(row: GenerationRow) -> GenerationRow:
    calls = forced_calls(row.completion)
    if not calls:
        return dataclasses.replace(row, tool_calls=[])
    return dataclasses.replace(row, tool_calls=calls, completion="", finish_reason="tool_calls")
