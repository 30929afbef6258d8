"""The heartbeat of SGLang's scheduler: left in the child, read in the parent.

Its messages are too few: between two of them may lie 50 tokens of each row and the prefill of all
that waits (sglang 0.5.9, `srt/managers/scheduler_output_processor_mixin.py`), which is minutes on a
slow CPU. So each batch that it begins is a sign of life too: it touches the engine's log.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def touch_log(run_batch: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Around `Scheduler.run_batch`, in the child, whose stdout is the log."""
    os.utime(1)
    return run_batch(*args, **kwargs)


def last_heartbeat(manager: Any, log: Path) -> object:
    """None while the scheduler owes nobody an answer, else what changes with each sign of life.

    manager: SGLang's `TokenizerManager` (`srt/managers/tokenizer_manager.py`), which has a request
    in `rid_to_state` until its last answer, and a communicator for each kind of other question
    (`tokenizer_communicator_mixin.py`).
    """
    events = (getattr(value, "_result_event", None) for value in vars(manager).values())
    if not manager.rid_to_state and all(event is None or event.is_set() for event in events):
        return None
    touched = None
    with contextlib.suppress(OSError):
        touched = log.stat().st_mtime_ns
    return manager.last_receive_tstamp, touched
