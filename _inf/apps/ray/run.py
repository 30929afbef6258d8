"""A file of prompts to a file of answers on Ray's cluster: what `inf batch --workers` does.

As `batch_file`, with `InferenceWorker`s under Ray Data in place of one engine. The lines go out in
blocks, each one task; a block's answers come back together and in order, so what the record
promises holds. A task whose actor dies goes to another. Ray is imported when it is wanted.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from _inf.apps.batch.lines import parse
from _inf.apps.batch.run import fingerprint_of, lines
from _inf.apps.batch.run_files import Fault, Job, RunFiles
from _inf.apps.batch.runner import CALLS_ON_CPU, MOST_CALLS, RunStats
from _inf.apps.ray.cluster import cluster
from _inf.apps.ray.worker import InferenceWorker
from _inf.config import Config
from _inf.errors import ConfigError, EngineDeadError, InferenceError
from _inf.runtime.progress import progress

# Blocks under way on one engine: while one waits for its longest line, the others keep it busy.
BLOCKS_AT_ONCE = 4
# Actors that may die under one block before it is held for the cause.
RETRIES = 3


@dataclasses.dataclass(frozen=True)
class Share:
    """What one engine gets of the cluster, and how many lines a block has."""

    num_cpus: int
    num_gpus: int
    lines: int


def answer_file_on_ray(
    config: Config,
    source: Path,
    record: RunFiles,
    params: Mapping[str, Any],
    *,
    workers: int,
    total: int,
    hear: Callable[[Fault], None] = lambda fault: None,
) -> RunStats:
    """`batch_file.answer_file` with `workers` engines on the cluster of `RAY_ADDRESS`, or on this
    machine's cores.

    Raises what that does; `ConfigError` where the cluster has too little for so many engines.
    """
    parallel = config.rollout.tensor_model_parallel_size * config.rollout.data_parallel_size
    if parallel > 1:
        raise ConfigError(
            f"--workers: an engine has one process there, and rollout.tensor_model_parallel_size x "
            f"data_parallel_size is {parallel}; set both to 1."
        )
    config = _anywhere(config)
    start, rows, tokens, done = time.monotonic(), 0, 0, record.done
    with cluster() as ray, progress(total, None, before=done) as report:
        share = share_of(ray.cluster_resources(), config, workers)
        about = fingerprint_of(config)
        arguments = {"config": config.to_dict(), "params": dict(params), "about": about}
        for answers in _answered(ray, _waiting(source, record), share, workers, arguments):
            results = [_result(each) for each in answers]
            record.keep(results)
            for fault in (each for each in results if isinstance(each, Fault)):
                hear(fault)
            done += len(results)
            rows += sum(isinstance(each, dict) for each in results)
            tokens += sum(each["completion_tokens"] for each in answers)
            if report:
                report(done, tokens)
    return RunStats(rows, tokens, time.monotonic() - start)


def share_of(resources: Mapping[str, float], config: Config, workers: int) -> Share:
    """One of `workers` engines' part of the cluster: a GPU, or so many cores.

    Raises `ConfigError` where there is not one for each.
    """
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    on_gpu = config.device == "cuda" or (config.device == "auto" and gpus > 0)
    have, what = (gpus, "GPUs") if on_gpu else (cpus, "cores")
    if workers > have:
        raise ConfigError(
            f"--workers: {workers} engines want one each of the cluster's {have} {what}; ask for "
            f"{have} at most."
        )
    at_once = min(MOST_CALLS if on_gpu else CALLS_ON_CPU, config.rollout.max_num_seqs)
    lines = max(1, at_once // BLOCKS_AT_ONCE)
    return Share(1 if on_gpu else cpus // workers, int(on_gpu), lines)


def _anywhere(config: Config) -> Config:
    """With paths that also hold where a worker's process has another working directory."""
    path = os.path.expanduser(config.model_path or "")
    if not os.path.exists(path):
        return config
    return config.model_copy(update={"model_path": os.path.abspath(path)})


def _waiting(source: Path, record: RunFiles) -> Iterator[tuple[int, bytes]]:
    """The lines that are still to be answered; they are parsed here only to tell which."""
    text = b""

    def jobs() -> Iterator[Job | Fault]:
        nonlocal text
        for line, text in lines(source):
            yield parse(text, line, "")

    for job in record.remaining(jobs()):  # it takes one at a time
        yield job.line, text


def _answered(
    ray: Any,
    waiting: Iterator[tuple[int, bytes]],
    share: Share,
    workers: int,
    arguments: Mapping[str, Any],
) -> Iterator[list[dict[str, Any]]]:
    """Blocks of answers, in order. The input goes to Ray's object store, which spills to disk."""
    import pyarrow

    blocks = []
    while block := list(itertools.islice(waiting, share.lines)):
        numbers, texts = zip(*block, strict=True)
        blocks.append(ray.put(pyarrow.table({"line": numbers, "text": texts})))
    if not blocks:
        return
    dataset = ray.data.from_arrow_refs(blocks)
    context = dataset.context
    context.enable_progress_bars = False
    context.raise_original_map_exception = True
    context.execution_options.preserve_order = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, of an argument that is still the only way
        answered = dataset.map_batches(
            InferenceWorker,
            fn_constructor_kwargs=dict(arguments),
            batch_size=None,  # a block
            compute=ray.data.ActorPoolStrategy(
                size=min(workers, len(blocks)),
                max_tasks_in_flight_per_actor=BLOCKS_AT_ONCE,
                max_concurrent_calls_per_actor=BLOCKS_AT_ONCE,
                enable_true_multi_threading=True,
            ),
            num_cpus=share.num_cpus,
            num_gpus=share.num_gpus,
            ray_remote_args_fn=lambda: {"max_task_retries": RETRIES},
        )
    try:
        for table in answered.iter_batches(
            batch_size=None, batch_format="pyarrow", prefetch_batches=0
        ):
            yield table.to_pylist()
    except ray.exceptions.RayError as failure:
        cause = getattr(failure, "cause", None)
        if isinstance(cause, InferenceError):
            said = str(cause).partition("\nFailed to apply")[0]  # what follows is Ray's own advice
            raise type(cause)(said) from None
        raise EngineDeadError(f"A worker was lost for good: {failure}") from failure


def _result(answer: Mapping[str, Any]) -> dict[str, Any] | Fault:
    if answer["error"]:
        name = parse(answer["text"], answer["line"], "").custom_id
        return Fault(answer["line"], answer["error"], name)
    return dict(json.loads(answer["answer"]))
