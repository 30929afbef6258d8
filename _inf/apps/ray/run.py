"""Answers the lines of a batch file on a Ray cluster, for `inf batch --workers`. Each actor is an
`InferenceWorker` and gets a few blocks of lines at a time; if one dies, its next process answers
the block. Ray is imported only when it is used."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from _inf.apps.batch import fingerprint
from _inf.apps.batch.runner import Keep, lines_at_once
from _inf.apps.ray.cluster import cluster
from _inf.apps.ray.worker import InferenceWorker
from _inf.backends.registry import describe
from _inf.config import Config
from _inf.errors import ConfigError, EngineDeadError, InferenceError
from _inf.runtime.extras import require

# Blocks at once on one engine: while one waits for its longest line, the others keep it busy.
BLOCKS_AT_ONCE = 4
# How long Ray may look for a place for an actor, and how often that is asked.
PLACE_SECONDS, CHECK_SECONDS = 120.0, 5.0
# Restarts of an actor before the run ends with an error.
RETRIES = 3


def answer_on_ray(
    config: Config,
    lines: Iterable[tuple[int, bytes]],
    params: Mapping[str, Any],
    keep: Keep,
    workers: int,
    rollouts: bool,
) -> None:
    """Answer `lines` with `workers` engines on the cluster of `RAY_ADDRESS`, or on this machine's
    cores; `params` and `keep` as of `answer_each`, `rollouts` as of `parse`.

    Raises as `answer_each`, `ConfigError` if the cluster is too small, and `EngineDeadError` if an
    engine loses its place on it.
    """
    parallel = config.rollout.tensor_model_parallel_size * config.rollout.data_parallel_size
    if parallel > 1:
        raise ConfigError(
            "--workers: each worker's engine has one process, but "
            f"rollout.tensor_model_parallel_size x data_parallel_size is {parallel}; set both to 1."
        )
    if describe(config).remote:
        raise ConfigError(
            "--workers: all workers would ask the same server; leave it out, and set "
            "rollout.max_num_seqs to the number of requests that the server takes at once."
        )
    require("ray", "--workers: ")
    model = fingerprint.of_config(config)["model"]
    settings = config.model_copy(update={"model_path": _anywhere(config.model_path)})
    with cluster() as ray:
        from ray._private.state import available_resources_per_node

        free = list(available_resources_per_node().values())
        share = share_of(ray.cluster_resources(), free, config, workers)
        at_once = lines_at_once(config, on_cpu="num_cpus" in share)
        again = {"max_restarts": RETRIES, "max_task_retries": RETRIES}
        worker = ray.remote(max_concurrency=BLOCKS_AT_ONCE, **again, **share)(InferenceWorker)
        actors = [worker.remote(settings, params, model, rollouts) for _ in range(workers)]
        for block in _answered(ray, actors, lines, max(1, at_once // BLOCKS_AT_ONCE)):
            columns = block["line"], block["answer"], block["completion_tokens"]
            for line, answer, tokens in zip(*columns, strict=True):
                keep(line, json.loads(answer), tokens)


def share_of(
    resources: Mapping[str, float],
    free: Sequence[Mapping[str, float]],
    config: Config,
    workers: int,
) -> dict[str, int]:
    """Return the resources of one of `workers` engines: a GPU, or a number of cores, of which
    each machine has enough for its engines. resources: of the whole cluster. free: of each machine,
    what other work leaves. Raises `ConfigError` if fewer GPUs or cores than engines are free."""
    on_gpu = config.device == "cuda" or (config.device == "auto" and resources.get("GPU", 0) > 0)
    name, what = ("GPU", "GPUs") if on_gpu else ("CPU", "cores")
    machines, whole = [int(each.get(name, 0)) for each in free], int(resources.get(name, 0))
    if workers > (left := sum(machines)):
        raise ConfigError(
            f"--workers: {workers} engines need one each of the cluster's {what}, of which {left} "
            f"of {whole} are free; lower it, wait until other work there has ended, or name "
            "another cluster in RAY_ADDRESS."
        )
    most = 1 if on_gpu else max(machines)
    fits = [size for size in range(1, most + 1) if sum(n // size for n in machines) >= workers]
    return {"num_gpus" if on_gpu else "num_cpus": fits[-1]}


def _anywhere(model_path: str | None) -> str | None:
    """A local path is made absolute, because workers have another working directory."""
    path = os.path.expanduser(model_path or "")
    return os.path.abspath(path) if os.path.exists(path) else model_path


def _answered(
    ray: Any, actors: list[Any], lines: Iterable[tuple[int, bytes]], size: int
) -> Iterator[dict[str, Any]]:
    """Yield blocks of `size` lines with their answers when finished; slow actors get fewer."""
    waiting, free, running = iter(lines), actors * BLOCKS_AT_ONCE, {}
    try:
        while True:
            while free and (block := list(itertools.islice(waiting, size))):
                numbers, texts = zip(*block, strict=True)
                actor = free.pop()
                running[actor.__call__.remote({"line": numbers, "text": texts})] = actor
            if not running:
                return
            done = _finished(ray, list(running), actors)
            free.append(running.pop(done))
            yield ray.get(done)
    except ray.exceptions.RayTaskError as failure:
        if isinstance(failure.cause, InferenceError):
            raise failure.cause from None
        raise
    except ray.exceptions.RayError as failure:
        raise EngineDeadError(f"A worker was lost for good: {failure}") from failure


def _finished(ray: Any, running: list[Any], actors: Sequence[Any]) -> Any:
    """Return a block that is finished. Raises `EngineDeadError` if for `PLACE_SECONDS` none was and
    an actor had no process: Ray itself waits for a place for ever."""
    from ray._private.state import actors as about

    since = time.monotonic()
    while not (done := ray.wait(running, timeout=CHECK_SECONDS)[0]):
        states = [about(actor._actor_id.hex()).get("State") for actor in actors]
        alive = states.count("ALIVE")
        if alive == len(actors):
            since = time.monotonic()
        elif time.monotonic() - since > PLACE_SECONDS:
            raise EngineDeadError(
                f"--workers: for {PLACE_SECONDS:.0f} seconds Ray has found a place for only "
                f"{alive} of {len(actors)} engines: a machine was lost, or other work took its "
                "GPUs or cores. The same command resumes with the lines that have no answer, also "
                "with fewer --workers."
            )
    return done[0]
