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
TURNS = ("tools", "agent_loop", "environment_factory")  # keywords of generate that ask for them
MAX_CALLS = 512  # InferenceEngine's threads
UNFINISHED = "the row was aborted before its answer was whole"  # when nothing says why
REFUSALS = (PromptError, ConfigError, ToolError)  # of a line's own request
# Which code an error row has for the exception that a row's error names first.
REFUSED, FAILED = {"PromptError", "PromptTooLongError", "ConfigError"}, "RequestFailure"

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
    """One where rows may have turns: `over_sample_rate` would give up lines that are slower than
    the others of their call."""
    rollout = engine.config.rollout
    has_turns = rollout.multi_turn.enable or rollout.agent.default or any(map(params.get, TURNS))
    if has_turns or not engine.on_cpu:
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

    with no_warnings_of_rows():
        await asyncio.gather(*(worker() for _ in range(at_once // of_a_call)))


@contextlib.contextmanager
def no_warnings_of_rows() -> Iterator[None]:
    """Hide warnings of a greedy line's equal samples, and of what the written rows say: failures
    (`error`) and ids of agent loops (`unsampled_ids`)."""
    with contextlib.ExitStack() as stack:
        for beginning in ("n: ", "rows: ", "agent loop "):
            stack.enter_context(quiet.no_warnings(beginning))
        yield


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
    """Answer jobs of `in_calls` in one call; return their rows and tokens. Raises errors that would
    end every other job too."""
    first = jobs[0]
    if isinstance(first, BadLine):
        return [(error_row(first, "invalid_request", first.reason), 0)]
    asked = cast(list[Job], jobs)
    try:
        output = await _answers(engine, asked, params)
    except GenerationTimeout as failure:
        code, reason = "timeout", str(failure)
    except RequestFailure as failure:
        code, reason = "server_error", str(failure)
    except REFUSALS as failure:  # of what all of them ask for
        code, reason = "invalid_request", failure.for_one_prompt()
    else:
        n = len(output) // len(asked)
        return [_answered(job, output[i * n : i * n + n]) for i, job in enumerate(asked)]
    return [(error_row(job, code, reason), 0) for job in asked]


async def _answers(
    engine: InferenceEngine, jobs: Sequence[Job], params: Mapping[str, Any]
) -> GenerationOutput:
    of_each = [_params_of(job, params) for job in jobs]
    shared, choice = dict(of_each[0]), jobs[0].tool_choice
    if choice is not None:  # by a grammar, or with tools that are shown only, as `inf serve` does
        call = rendered_call(engine, [jobs[0].prompt], shared, choice)
        output = await call.answer()
        return GenerationOutput([_with_call(row) for row in output]) if call.forced else output
    if len(jobs) > 1 and shared.get("seed") is not None:
        shared["seed"] = [own["seed"] for own in of_each]
    prompts: Any = jobs[0].prompt if len(jobs) == 1 else [job.prompt for job in jobs]
    return await engine.agenerate(prompts, **cast(GenerateParams, shared))


def _params_of(job: Job, params: Mapping[str, Any]) -> dict[str, Any]:
    own = {**params, "n": 1, **job.params, "progress": False, "on_error": "row"}
    if "seed" not in job.params:
        own["seed"] = prompt_seed(params.get("seed"), job.line - 1)  # as in one call
    return own


def _answered(job: Job, output: GenerationOutput) -> Answer:
    """Return the job's row; one of an error if an answer was aborted, which is then no answer."""
    for row in output:
        if row.finish_reason == "abort":
            return error_row(job, *_error(row)), 0
    return job.row(output), sum(row.completion_tokens for row in output)


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
