"""Frees the accelerator's memory and takes it again, with verl's own `release` and `resume`.

verl 0.6.1 (`sglang_rollout.py`) leaves the order to its caller; sglang 0.5.9
(`managers/scheduler_update_weights_mixin.py`) dies of a release during a request and of a resume
without a release. Here a release waits for the running calls, and neither is done twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from _inf.errors import ConfigError, InferenceError
from _inf.types import SleepResult

if TYPE_CHECKING:
    from _inf.backends.verl.corrected_rollout import CorrectedRollout

ASLEEP = "The engine is asleep; wake_up() brings it back."
ON_CPU = (
    "The prefix cache was emptied, but on a CPU its memory and the weights' stay the engine's: "
    "SGLang's memory saver is CUDA's. shutdown() frees them."
)
# In the order in which verl must resume them.
PARTS = ["weights", "kv_cache"]


async def sleep(rollout: CorrectedRollout) -> SleepResult:
    """Free the memory; called on the engine's loop while no call runs."""
    _check(rollout, "sleep")
    engine = rollout._engine
    if engine is not None:
        if engine.refusal == ASLEEP:
            return SleepResult(0, "It was asleep already.")
        if engine.refusal is not None:
            raise InferenceError(engine.refusal)
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
    _check(rollout, "wake_up")
    engine = rollout._engine
    if engine is not None and engine.refusal != ASLEEP:
        return
    if not rollout.on_cpu:
        await rollout.resume(PARTS)
    if engine is not None:
        engine.refusal = None


def _check(rollout: CorrectedRollout, verb: str) -> None:
    if not rollout.config.free_cache_engine:
        raise ConfigError.of(
            "rollout.free_cache_engine", f"{verb}() needs an engine that was started with it true"
        )


def _free_bytes() -> int:
    """Free memory of this process's own GPU: with tensor parallelism verl names the other ranks'
    in CUDA_VISIBLE_DEVICES when CUDA runs already, so that they are counted and cannot be used."""
    import torch

    return int(torch.cuda.mem_get_info()[0])
