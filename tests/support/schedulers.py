"""What a running engine holds and does: on `sglang` in its scheduler, on `hf` in its decoder."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import psutil

from _inf.backends.hf.decoding import Decoder
from _inf.runtime.calls import CancelToken
from inf import InferenceEngine


def in_flight(engine: InferenceEngine) -> int:
    """Requests that the engine has not answered."""
    if engine.config.rollout.name == "hf":
        return sum(load(engine))
    return len(engine.rollout._engine.tokenizer_manager.rid_to_state)


def load(engine: InferenceEngine) -> tuple[int, int]:
    """How many requests it runs, and how many wait."""
    if engine.config.rollout.name == "hf":
        backend = engine._backend
        return backend.host.run(_load(backend.decoder), CancelToken())
    rollout = engine.rollout
    (now,) = rollout.host.run(rollout._engine.tokenizer_manager.get_load(), CancelToken())
    return now.num_reqs - now.num_waiting_reqs, now.num_waiting_reqs


async def _load(decoder: Decoder) -> tuple[int, int]:
    running = [*decoder._taken, *(row for batch in decoder._batches for row in batch.rows)]
    waiting = [row for rows in decoder._waiting.values() for row in rows]
    return len({id(row) for row in running if not row.done.done()}), len(
        [row for row in waiting if not row.done.done()]
    )


def open_files_and_threads() -> tuple[int, int]:
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), process.num_threads()


def slow_down(engine: InferenceEngine, seconds: float) -> None:
    """Each forward pass begins with so many seconds of sleep."""
    if engine.config.rollout.name == "hf":
        _slow_down_decoder(engine._backend.decoder, seconds)
        return
    from sglang.srt.managers.io_struct import SlowDownReqInput

    manager = engine.rollout._engine.tokenizer_manager
    engine.rollout.host.run(manager.slow_down(SlowDownReqInput(seconds)), CancelToken())


def _slow_down_decoder(decoder: Any, seconds: float) -> None:
    async def sleep_between_steps() -> None:
        await asyncio.sleep(seconds)
        await Decoder.between_steps(decoder)

    decoder.between_steps = sleep_between_steps
