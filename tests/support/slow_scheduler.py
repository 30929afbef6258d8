"""A scheduler that comes round to its loop some time after it has sent an answer."""

from __future__ import annotations

import pkgutil
import time
from pathlib import Path
from typing import Any

from _inf.backends.verl.launch_sglang import SETUP

SECONDS = 0.02


def set_up(log: Path, **arguments: Any) -> None:
    """Takes the place of `SETUP` in the child."""
    pkgutil.resolve_name(SETUP)(log, **arguments)
    from sglang.srt.managers.scheduler import Scheduler

    process = Scheduler.process_batch_result

    def process_and_sleep(self: Scheduler, *args: Any, **kwargs: Any) -> Any:
        processed = process(self, *args, **kwargs)
        time.sleep(SECONDS)
        return processed

    Scheduler.process_batch_result = process_and_sleep
