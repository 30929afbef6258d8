"""Sends new weights, which `_inf.backends.new_weights` has checked, to a running engine.

In: pairs of (name, tensor). verl's own `SGLangRollout.update_weights` sends them in buckets.

It corrects that SGLang (0.5.9, `model_executor/model_runner.py`) silently drops unknown names and
dies of a wrong shape, and that verl (0.6.1, `sglang_rollout.py`) lets calls run between two
buckets, ignores the engine's answer, and turns the caller's own CPU tensors into shared memory.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import torch

from _inf.backends.new_weights import NamedTensors
from _inf.errors import InferenceError

if TYPE_CHECKING:
    from _inf.backends.verl.corrected_rollout import CorrectedRollout
    from _inf.backends.verl.engine import Engine

HALF_WAY = (
    "An update of the weights ended half way, so the engine holds some old and some new ones; "
    "call update_weights() again with all of them, or restart()."
)


async def send(
    rollout: CorrectedRollout, tensors: NamedTensors, version: int | None, begun: threading.Lock
) -> int:
    """Send the weights on the engine's loop while no call runs; return the new version.

    begun: acquired here; its caller does that if this never ran. On all ranks of a tensor-parallel
    group alike; an error of one is raised on all of them.
    """
    if not begun.acquire(blocking=False):
        raise asyncio.CancelledError
    engine, refused = rollout._engine, None
    if engine is not None:  # with tensor parallelism only the first rank of a group has one
        try:
            await _prepare(engine)
        except Exception as failure:
            refused = failure
    rollout.ranks.agree(refused)
    # Only the sender's own children can open CPU shared memory; other ranks' need CUDA memory.
    device = "cpu" if rollout.on_cpu else "cuda" if rollout._tp_size > 1 else None
    own = ((name, _copied(tensor, device)) for name, tensor in tensors)
    try:
        await rollout.update_weights(own)
        rollout.ranks.agree(None if engine is None else engine.update_failure)
    except Exception as failure:
        raise InferenceError(f"{HALF_WAY} It failed with {failure!r}.") from failure
    rollout.weight_version = rollout.weight_version + 1 if version is None else version
    if engine is not None:
        engine.tokenizer_manager.server_args.weight_version = str(rollout.weight_version)
        engine.refusal = None
    return int(rollout.weight_version)


async def _prepare(engine: Engine) -> None:
    """Refuse an update while asleep; else empty the prefix cache and refuse requests."""
    if engine.refusal not in (None, HALF_WAY):  # asleep
        raise InferenceError(engine.refusal)
    await engine.or_death(engine.prefix_cache.empty())
    engine.refusal, engine.update_failure = HALF_WAY, None


def _copied(tensor: torch.Tensor, device: str | None) -> torch.Tensor:
    """Copy a CPU tensor, because sending turns it into shared memory for the rest of its life."""
    whole = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()
    if whole.is_cpu and device != "cuda":
        return whole.clone(memory_format=torch.contiguous_format)
    return whole if device is None else whole.to(device)
