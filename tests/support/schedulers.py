"""What a running engine holds and does, in this process and in its scheduler."""

from __future__ import annotations

import gc

import psutil

from _inf.runtime.calls import CancelToken
from inf import InferenceEngine


def in_flight(engine: InferenceEngine) -> int:
    """Requests that the engine has not answered."""
    return len(engine.rollout._engine.tokenizer_manager.rid_to_state)


def load(engine: InferenceEngine) -> tuple[int, int]:
    """How many requests its scheduler runs, and how many wait there."""
    rollout = engine.rollout
    (now,) = rollout.host.run(rollout._engine.tokenizer_manager.get_load(), CancelToken())
    return now.num_reqs - now.num_waiting_reqs, now.num_waiting_reqs


def open_files_and_threads() -> tuple[int, int]:
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), process.num_threads()


def slow_down(engine: InferenceEngine, seconds: float) -> None:
    """Each forward pass begins with so many seconds of sleep."""
    from sglang.srt.managers.io_struct import SlowDownReqInput

    manager = engine.rollout._engine.tokenizer_manager
    engine.rollout.host.run(manager.slow_down(SlowDownReqInput(seconds)), CancelToken())
