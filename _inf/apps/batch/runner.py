"""Many jobs through an engine, into a `RunFiles`, in order, with flat memory.

The engine is never idle while jobs are left: calls are under way `at_once`, and `WINDOW` times as
many jobs are taken in, so that one long answer holds up nobody for a while. Knows nothing of where
jobs come from.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import itertools
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from _inf.apps.batch.run_files import Fault, Job, RunFiles
from _inf.errors import ConfigError, GenerationTimeout, InferenceError, PromptError, ToolError
from _inf.request.sampling import prompt_seed
from _inf.runtime.progress import progress

WINDOW = 4
CALLS_ON_CPU = 32  # more only make all of them slow, and a kill dear
MOST_CALLS = 512  # InferenceEngine's threads

Result = dict[str, Any] | Fault | InferenceError


@dataclasses.dataclass(frozen=True)
class RunStats:
    """What this run did, without what was done before."""

    rows: int
    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


def calls_at_once(engine: Any) -> int:
    if engine.rollout.on_cpu:
        return min(CALLS_ON_CPU, int(engine.config.rollout.max_num_seqs))
    return min(MOST_CALLS, int(engine.config.rollout.max_num_seqs))


def answer(
    engine: Any,
    jobs: Iterable[Job | Fault],
    record: RunFiles,
    params: Mapping[str, Any],
    *,
    at_once: int,
    total: int,
    hear: Callable[[Fault], None] = lambda fault: None,
) -> RunStats:
    """Answer what remains of `jobs` (`total` of them, the done ones included).

    params: for all; a job's own go first. hear: told of each fault when it is written.

    Raises what ends a run: `EngineDeadError`, a disk that is full. What was written stays.
    """
    engine.generate([], **params)  # refuse wrong parameters once, and not in every line
    start = time.monotonic()
    count = collections.Counter[str]()

    with progress(total, None, before=record.done) as report, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "n: ")  # a greedy line's equal samples were asked for

        def finished(result: Result, tokens: int) -> Result:
            count.update(lines=1, tokens=tokens, rows=isinstance(result, dict))
            if report:
                report(record.done + count["lines"], count["tokens"])
            return result

        asyncio.run(
            _answer(engine, record.remaining(jobs), record, params, at_once, finished, hear)
        )
    return RunStats(count["rows"], count["tokens"], time.monotonic() - start)


async def _answer(
    engine: Any,
    jobs: Iterable[Job | Fault],
    record: RunFiles,
    params: Mapping[str, Any],
    at_once: int,
    finished: Callable[[Result, int], Result],
    hear: Callable[[Fault], None],
) -> None:
    gate = asyncio.Semaphore(at_once)
    waiting = iter(jobs)
    window: collections.deque[asyncio.Task[Result]] = collections.deque()

    async def one(job: Job | Fault) -> Result:
        async with gate:
            return finished(*await answer_one(engine, job, params))

    while True:
        for job in itertools.islice(waiting, WINDOW * at_once - len(window)):
            window.append(asyncio.ensure_future(one(job)))
        if not window:
            return
        await asyncio.wait([window[0]])
        ready = []
        while window and window[0].done():
            ready.append(window.popleft().result())
        good = [*itertools.takewhile(lambda each: not isinstance(each, InferenceError), ready)]
        record.keep(good)  # type: ignore[arg-type]
        for each in good:
            if isinstance(each, Fault):
                hear(each)
        if len(good) < len(ready):
            raise ready[len(good)]  # type: ignore[misc]


async def answer_one(
    engine: Any, job: Job | Fault, params: Mapping[str, Any]
) -> tuple[Result, int]:
    """What is to be kept of a job, and the tokens of its answer; an error of ours that no other
    line could pass either is a result too."""
    if isinstance(job, Fault):
        return job, 0
    own = {**params, "n": 1, **job.params, "progress": False}
    if params.get("seed") is not None and "seed" not in job.params:
        own["seed"] = prompt_seed(params["seed"], job.line - 1)  # one for all: as in one call
    try:
        output = await engine.agenerate(job.prompt, **own)
    except (PromptError, ConfigError, ToolError, GenerationTimeout) as failure:
        reason = str(failure).replace("prompt 0", "the prompt", 1)
        return Fault(job.line, reason, job.custom_id), 0
    except InferenceError as failure:
        return failure, 0
    return job.row(output), sum(row["completion_tokens"] for row in output.metadata)
