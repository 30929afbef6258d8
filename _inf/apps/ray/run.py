"""Answers the lines of a batch file on a Ray cluster, for `inf batch --workers`.

Each actor is an `InferenceWorker` and gets a few blocks of lines at a time. If an actor dies, its
next process answers the block. Ray is imported only when it is used.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from _inf.apps.batch import fingerprint
from _inf.apps.batch.output_file import OutputFile
from _inf.apps.batch.runner import OnError, RunStats, calls_at_once, recording
from _inf.apps.ray.cluster import cluster
from _inf.apps.ray.worker import InferenceWorker
from _inf.config import Config
from _inf.errors import ConfigError, EngineDeadError, InferenceError

# Blocks at once on one engine: while one waits for its longest line, the others keep it busy.
BLOCKS_AT_ONCE = 4
# Restarts of an actor before the run ends with an error.
RETRIES = 3


def answer_on_ray(
    config: Config,
    lines: Iterable[tuple[int, bytes]],
    out: OutputFile,
    params: Mapping[str, Any],
    *,
    rollouts: bool = False,
    workers: int,
    total: int,
    on_error: OnError,
) -> RunStats:
    """Answer `lines`, `total` of them, into `out` with `workers` engines on the cluster of
    `RAY_ADDRESS`, or on this machine's cores; `rollouts` as in `parse`.

    Raises as `runner.answer`, and `ConfigError` if the cluster is too small.
    """
    parallel = config.rollout.tensor_model_parallel_size * config.rollout.data_parallel_size
    if parallel > 1:
        raise ConfigError(
            f"--workers: an engine there has one process; rollout.tensor_model_parallel_size x "
            f"data_parallel_size is {parallel}; set both to 1."
        )
    if config.rollout.name == "openai":
        raise ConfigError(
            "--workers: they would all ask the one server; leave it out, and set "
            "rollout.max_num_seqs to the requests that the server takes at once."
        )
    model = fingerprint.of_config(config)["model"]
    settings = {**config.to_dict(), "model_path": _anywhere(config.model_path)}

    with recording(out, total, on_error) as (stats, keep), cluster() as ray:
        share = share_of(ray.cluster_resources(), config, workers)
        at_once = calls_at_once(config, on_cpu="num_cpus" in share)
        worker = ray.remote(
            max_restarts=RETRIES,
            max_task_retries=RETRIES,
            max_concurrency=BLOCKS_AT_ONCE,
            **share,
        )(InferenceWorker)
        actors = [worker.remote(settings, params, model, rollouts) for _ in range(workers)]
        for block in _answered(ray, actors, lines, max(1, at_once // BLOCKS_AT_ONCE)):
            columns = block["line"], block["answer"], block["completion_tokens"]
            for line, answer, tokens in zip(*columns, strict=True):
                keep(line, json.loads(answer), tokens)
    return stats


def share_of(resources: Mapping[str, float], config: Config, workers: int) -> dict[str, int]:
    """Return the resources of one of `workers` engines: a GPU, or a number of cores.

    Raises `ConfigError` if there are fewer GPUs or cores than engines.
    """
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    on_gpu = config.device == "cuda" or (config.device == "auto" and gpus > 0)
    have, what = (gpus, "GPUs") if on_gpu else (cpus, "cores")
    if workers > have:
        raise ConfigError(
            f"--workers: {workers} engines need one each of the cluster's {have} {what}; set it to "
            f"{have} or less."
        )
    return {"num_gpus": 1} if on_gpu else {"num_cpus": cpus // workers}


def _anywhere(model_path: str | None) -> str | None:
    """Make a local path absolute, because workers have another working directory."""
    path = os.path.expanduser(model_path or "")
    return os.path.abspath(path) if os.path.exists(path) else model_path


def _answered(
    ray: Any, actors: list[Any], lines: Iterable[tuple[int, bytes]], size: int
) -> Iterator[dict[str, Any]]:
    """Yield blocks of `size` lines with their answers when finished; slow actors get fewer."""
    from ray.util import ActorPool

    pool, waiting = ActorPool(actors * BLOCKS_AT_ONCE), iter(lines)
    try:
        while block := list(itertools.islice(waiting, size)):
            if not pool.has_free():
                yield pool.get_next_unordered()
            numbers, texts = zip(*block, strict=True)
            pool.submit(
                lambda actor, batch: actor.__call__.remote(batch), {"line": numbers, "text": texts}
            )
        while pool.has_next():
            yield pool.get_next_unordered()
    except ray.exceptions.RayTaskError as failure:
        if isinstance(failure.cause, InferenceError):
            raise failure.cause from None
        raise
    except ray.exceptions.RayError as failure:
        raise EngineDeadError(f"A worker was lost for good: {failure}") from failure
