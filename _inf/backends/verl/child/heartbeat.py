"""The heartbeat of SGLang's scheduler: written in the child process, read in the parent.

The scheduler's messages are too few: between two of them may be 50 tokens of each row and the
prefill of all waiting rows (sglang 0.5.9, `srt/managers/scheduler_output_processor_mixin.py`), or
minutes on a slow CPU. So the scheduler also touches the engine's log when it starts a batch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def touch_log(run_batch: Callable[..., Any], *args: object, **kwargs: object) -> Any:
    """Wrap `Scheduler.run_batch` in the child, whose stdout is the log."""
    os.utime(1)
    return run_batch(*args, **kwargs)


def last_heartbeat(manager: Any, log: Path) -> object:
    """Return None while no answer is expected, else a value that changes with each heartbeat.

    manager: SGLang's `TokenizerManager` (`srt/managers/tokenizer_manager.py`), which keeps a
    request in `rid_to_state` until its last answer, and has a communicator for each other kind
    (`tokenizer_communicator_mixin.py`).
    """
    events = (getattr(value, "_result_event", None) for value in vars(manager).values())
    if not manager.rid_to_state and all(event is None or event.is_set() for event in events):
        return None
    touched = None
    with contextlib.suppress(OSError):
        touched = log.stat().st_mtime_ns
    return manager.last_receive_tstamp, touched
