"""Changes a running engine while no call runs, or while its rows are frozen: updates the weights,
sleeps, wakes up, and empties the prefix cache where needed.

verl's `SGLangRollout.update_weights` (0.6.1, `sglang_rollout.py`) sends weights in buckets; it lets
calls run between two of them, ignores the engine's answer, and turns the caller's own CPU tensors
into shared memory. It leaves the order of `release` and `resume` to its caller, and sglang 0.5.9
(`managers/scheduler_update_weights_mixin.py`) dies of a release during a request and of a resume
without a release. Here neither is done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from _inf.backends.new_weights import NamedTensors, whole
from _inf.errors import ConfigError, EngineRefusal, InferenceError
from _inf.types import SleepResult

if TYPE_CHECKING:
    from sglang.srt.managers.io_struct import FlushCacheReqOutput

    from _inf.backends.verl.corrected_rollout import CorrectedRollout
    from _inf.backends.verl.engine import Engine

ASLEEP = "The engine is asleep; wake_up() wakes it."
ON_CPU = (
    "The prefix cache was emptied, but on a CPU the engine keeps the memory of cache and weights, "
    "because SGLang's memory saver needs CUDA. shutdown() frees it."
)
# In the order in which verl must resume them.
PARTS = ["weights", "kv_cache"]
HALF_WAY = (
    "An update of the weights failed halfway, so the engine has some old and some new weights; "
    "call update_weights() again with all weights, or restart()."
)
SHARED_MEMORY = "/dev/shm"
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1  # seconds between two attempts to empty the cache
# Counted, not timed, because a slow scheduler answers rarely; a minute at least.
MAX_REFUSALS = 600


class PrefixCache:
    """Empties the prefix cache of one engine. flush: SGLang's, whose answer has `success`; 0.5.9
    (`srt/managers/scheduler.py`, `_is_no_request`) refuses while requests run, and also when an
    answer was sent and the scheduler's loop has not come round since, which verl does not read.
    """

    def __init__(self, flush: Callable[[], Awaitable[FlushCacheReqOutput]]) -> None:
        self._flush = flush
        self._one = asyncio.Lock()

    async def empty(self, others: Callable[[], bool] = lambda: False) -> None:
        """Empty it, after aborted requests have ended; leave it as it is if `others` run. Under
        frozen rows new ones get an empty one (`child/frozen_rows.py`).

        Raises if the scheduler refuses without end.
        """
        pause = FIRST_PAUSE
        for _ in range(MAX_REFUSALS):
            # Shielded, because after a cancelled flush SGLang never answers a later one.
            if (await asyncio.shield(self._attempt())).success or others():
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        raise InferenceError(
            f"The engine's scheduler refused {MAX_REFUSALS} times to empty its prefix cache, as if "
            "a request still ran; restart() starts a new engine."
        )

    async def _attempt(self) -> FlushCacheReqOutput:
        """One at a time: where one begins just as another ends, SGLang fails a third one that waits
        (`managers/tokenizer_communicator_mixin.py`)."""
        async with self._one:
            return await self._flush()


async def freeze(engine: Engine) -> None:
    """Make all rows stand still between two tokens; the manager holds back the requests that come
    from now on."""
    from sglang.srt.managers.io_struct import PauseGenerationReqInput

    await engine.tokenizer_manager.pause_generation(PauseGenerationReqInput(mode="in_place"))
    await _tokens_of_rows(engine)  # the pause itself has no answer


async def thaw(engine: Engine) -> None:
    """Let frozen rows go on; if their weights are broken, they fail."""
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput

    if engine.refusal == ASLEEP and (engine.rows or engine.tokenizer_manager.rid_to_state):
        raise InferenceError(ASLEEP)
    if engine.refusal is not None:
        _end_rows(engine, EngineRefusal(engine.refusal))
    await engine.tokenizer_manager.continue_generation(ContinueGenerationReqInput())


async def _drop_keys_and_values(rollout: CorrectedRollout) -> None:
    """Those of frozen rows are computed again, with the weights that are there when they go on."""
    from sglang.srt.managers.io_struct import PauseGenerationReqInput

    if rollout.host.lock.frozen:
        manager = rollout.engine().tokenizer_manager
        await manager.pause_generation(PauseGenerationReqInput(mode="retract"))


async def _tokens_of_rows(engine: Engine) -> Mapping[str, int]:
    """How many tokens each frozen row has, by request id (`child/frozen_rows.py`)."""
    # Shielded, because after a cancelled request SGLang never answers a later one.
    asked = asyncio.ensure_future(engine.tokenizer_manager.get_internal_state())
    [tokens, *_] = await asyncio.shield(asked)
    return dict(tokens)


@contextlib.contextmanager
def ending(engine: Engine) -> Iterator[None]:
    """Within it running rows end with what they have, and later requests are not sent."""
    with engine.rows.ending():
        _end_rows(engine, None)
        yield


def _end_rows(engine: Engine, failure: Exception | None) -> None:
    for rid in engine.rows.end(list(engine.tokenizer_manager.rid_to_state), failure):
        engine.tokenizer_manager.abort_request(rid)


async def send_weights(
    rollout: CorrectedRollout,
    tensors: NamedTensors,
    version: int | None,
    begun: threading.Lock,
    *,
    recompute: bool = False,
) -> int:
    """Send the weights on the engine's loop while no call runs, or while rows are frozen; return
    the new version.

    begun: acquired here; its caller does that if this never ran. On all ranks of a tensor-parallel
    group alike; an error of one is raised on all of them. recompute: whether frozen rows' keys and
    values are computed again with the new weights.
    """
    if not begun.acquire(blocking=False):
        raise asyncio.CancelledError
    engine, refused = rollout._engine, None
    if engine is not None:  # with tensor parallelism only the first rank of a group has one
        try:
            await _ready(rollout, engine, tensors, recompute)
        except Exception as failure:
            refused = failure
    rollout.ranks.agree(refused)
    try:
        with _memory_that_can_be_shared(rollout.on_cpu) as copy:
            sent = ((name, _sendable(tensor, rollout.on_cpu, copy)) for name, tensor in tensors)
            await rollout.update_weights(sent)
        rollout.ranks.agree(None if engine is None else engine.update_failure)
    except Exception as failure:
        raise InferenceError(f"{HALF_WAY} It failed with {failure!r}.") from failure
    rollout.weight_version = rollout.weight_version + 1 if version is None else version
    rollout.weights_changed()
    if engine is not None:
        frozen = rollout.host.lock.frozen
        tokens = await engine.or_death(_tokens_of_rows(engine)) if frozen else {}
        engine.tokenizer_manager.server_args.weight_version = str(rollout.weight_version)
        engine.rows.changed(tokens)
        engine.refusal = None
    return int(rollout.weight_version)


async def _ready(
    rollout: CorrectedRollout, engine: Engine, tensors: NamedTensors, recompute: bool
) -> None:
    """Let the engine take new weights: from now on it refuses requests until it has all."""
    if engine.refusal not in (None, HALF_WAY):  # asleep
        raise InferenceError(engine.refusal)
    if rollout.on_cpu:
        _check_shared_memory(tensors, rollout.config.update_weights_bucket_megabytes)
    if recompute:
        await _drop_keys_and_values(rollout)
    await engine.or_death(engine.prefix_cache.empty())
    engine.refusal, engine.update_failure = HALF_WAY, None


def _check_shared_memory(tensors: NamedTensors, megabytes: int) -> None:
    """Raise if a piece does not fit into shared memory: writing it would end this process with
    SIGBUS. Docker gives a container 64 MB."""
    sizes = [tensor.nbytes for _, tensor in tensors]
    needed = min(sum(sizes), max(megabytes << 20, *sizes))
    shared = os.statvfs(SHARED_MEMORY)
    if (free := shared.f_bavail * shared.f_frsize) < needed:
        raise InferenceError(
            f"update_weights() sends pieces of {needed >> 20} MB through {SHARED_MEMORY}, where "
            f"{free >> 20} MB are free. Make it larger (docker run --shm-size=2g), or lower "
            f"rollout.update_weights_bucket_megabytes: the largest tensor has {max(sizes) >> 20} "
            "MB. The engine keeps the weights that it has."
        )


@contextlib.contextmanager
def _memory_that_can_be_shared(on_cpu: bool) -> Iterator[bool]:
    """Let new CUDA tensors be such that the engine's process can open them, and yield whether those
    that are there must be copied. Memory of expandable segments is opened with `pidfd_getfd` (torch
    2.9), which Docker and Yama forbid; torch's own error advises this setting."""
    snapshot = {} if on_cpu else torch.cuda.memory._snapshot()
    expandable = bool(snapshot.get("allocator_settings", {}).get("expandable_segments"))
    if expandable:
        torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    try:
        yield expandable
    finally:
        if expandable:
            torch.cuda.memory._set_allocator_settings("expandable_segments:True")


def _sendable(tensor: torch.Tensor, on_cpu: bool, copy: bool) -> torch.Tensor:
    """The whole tensor, in memory that the engine's process can open. A CPU tensor is copied,
    because sending turns it into shared memory for the rest of its life; on a GPU it is sent from
    there, where shared memory has no limit of its own, and where other ranks can open it."""
    full = whole(tensor)
    if on_cpu:
        return full.to("cpu", copy=True, memory_format=torch.contiguous_format)
    return full.to(full.device if full.is_cuda else "cuda", copy=copy)


async def sleep(rollout: CorrectedRollout) -> SleepResult:
    """Free the memory; called on the engine's loop while no call runs, or while rows are frozen,
    whose keys and values are computed again when they go on."""
    engine = _engine(rollout, "sleep")
    if engine.refusal == ASLEEP:
        return SleepResult(0, "It was asleep already.")
    if engine.refusal is not None:
        raise InferenceError(engine.refusal)
    await _drop_keys_and_values(rollout)
    await engine.prefix_cache.empty()
    engine.refusal = ASLEEP
    if rollout.on_cpu:
        return SleepResult(0, ON_CPU)
    before = _free_bytes()
    await rollout.release()
    freed = _free_bytes() - before
    return SleepResult(freed, "Weights and KV cache; the weights wait in the host's memory.")


async def wake_up(rollout: CorrectedRollout) -> None:
    """Take the memory again; called on the engine's loop, does nothing if already awake."""
    engine = _engine(rollout, "wake_up")
    if engine.refusal == ASLEEP:
        if not rollout.on_cpu:
            await rollout.resume(PARTS)
        engine.refusal = None


def _engine(rollout: CorrectedRollout, verb: str) -> Engine:
    if not rollout.config.free_cache_engine:
        raise ConfigError.of(
            "rollout.free_cache_engine",
            f"{verb}() needs an engine that was started with this key set to true",
        )
    engine: Engine = rollout._engine
    return engine


def _free_bytes() -> int:
    """Free memory of this process's own GPU: with tensor parallelism verl names the other ranks'
    in CUDA_VISIBLE_DEVICES when CUDA runs already, so that they are counted and cannot be used."""
    return int(torch.cuda.mem_get_info()[0])
