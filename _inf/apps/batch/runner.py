"""Runs jobs on an engine and writes the rows into an `OutputFile`, with constant memory.

A fixed number of jobs run at once; each row is written when it is finished. Knows nothing of where
jobs come from.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from _inf.apps.batch.lines import BadLine, Job, error_row, parse, read_lines
from _inf.apps.batch.output_file import OutputFile, is_error
from _inf.apps.openai_format import BadRequest
from _inf.config import Config
from _inf.errors import ConfigError, GenerationTimeout, PromptError, RequestFailure, ToolError
from _inf.request.keywords import GenerateParams
from _inf.request.seeds import prompt_seed
from _inf.runtime import quiet
from _inf.runtime.progress import progress, say

if TYPE_CHECKING:
    from inf import InferenceEngine

SAY_SECONDS = 30.0  # between two lines about the progress
CALLS_ON_CPU = 32  # more calls only slow each other down
MAX_CALLS = 512  # InferenceEngine's threads

Keep = Callable[[int, Mapping[str, Any], int], None]  # called with a line, its row and its tokens
OnError = Callable[[int, str], None]  # called with a line and the reason


@dataclasses.dataclass
class RunStats:
    """Totals of this run, without earlier runs."""

    lines: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def unanswered(source: Path, out: OutputFile) -> Iterator[tuple[int, bytes]]:
    """Yield the numbered lines of `source` without an answer, except bad lines that have an error
    row already."""
    for line, text in read_lines(source):
        if out.has_answer(line) or (out.has_row(line) and isinstance(parse(text, line), BadLine)):
            continue
        yield line, text


def calls_at_once(config: Config, on_cpu: bool) -> int:
    return min(CALLS_ON_CPU if on_cpu else MAX_CALLS, config.rollout.max_num_seqs)


def answer(
    engine: InferenceEngine,
    jobs: Iterable[Job | BadLine],
    out: OutputFile,
    params: Mapping[str, Any],
    *,
    total: int,
    on_error: OnError = lambda line, reason: None,
) -> RunStats:
    """Answer `jobs`, `total` of them, into `out`.

    Arguments and errors as of `answer_each`. Written rows stay.
    """
    with recording(out, total, on_error) as (stats, keep):
        asyncio.run(answer_each(engine, jobs, params, keep))
    return stats


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
    with quiet.no_warnings("n: "):  # a greedy line's equal samples
        await asyncio.gather(*(worker() for _ in range(at_once)))


@contextlib.contextmanager
def recording(out: OutputFile, total: int, on_error: OnError) -> Iterator[tuple[RunStats, Keep]]:
    """Yield a run's totals and the function that writes a row; show a progress bar, or where there
    can be none a line now and then."""
    stats, start, before = RunStats(), time.monotonic(), out.answered
    said = start
    with progress(before + total, None, before=before) as report:

        def keep(line: int, row: Mapping[str, Any], tokens: int) -> None:
            nonlocal said
            out.append(line, row)
            stats.lines += 1
            stats.tokens += tokens
            if is_error(row):
                on_error(line, row["error"]["message"])
            if report:
                report(before + stats.lines, stats.tokens)
            elif (now := time.monotonic()) - said >= SAY_SECONDS:
                said, stats.seconds = now, now - start
                speed = f"{stats.tokens} tokens, {stats.tokens_per_second:.0f} tok/s"
                say(f"inf: {before + stats.lines} of {before + total} lines, {speed}")

        yield stats, keep
    stats.seconds = time.monotonic() - start


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
        else:
            from _inf.apps.batch.forced_call import answer_with_call  # imports a server's modules

            output = await answer_with_call(engine, job, own)
    except GenerationTimeout as failure:
        return error_row(job, "timeout", str(failure)), 0
    except RequestFailure as failure:
        return error_row(job, "server_error", str(failure)), 0
    except (PromptError, ConfigError, ToolError, BadRequest) as failure:
        reason = str(failure).replace("prompt 0", "the prompt", 1)
        return error_row(job, "invalid_request", reason), 0
    return job.row(output), sum(row.completion_tokens for row in output)
