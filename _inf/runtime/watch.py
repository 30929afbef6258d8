"""Finds out whether an engine's processes hang: stopped by a signal, or silent with work waiting.

Time is counted in calls of `look`, not by a clock: after the caller was stopped (Ctrl-Z) or the
machine slept, a clock would blame the child.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import psutil

LOOK_SECONDS = 1.25


@dataclasses.dataclass
class Watch:
    """Watches processes; call `look` every `LOOK_SECONDS`.

    last_heartbeat: returns None while no work waits, else a value that changes with each heartbeat.
    limit: the seconds of silence that are allowed; None: any number.
    """

    processes: Mapping[str, int]
    last_heartbeat: Callable[[], object]
    limit: float | None
    _stopped: set[str] = dataclasses.field(default_factory=set)
    _last: object = None
    _quiet_looks: int = 0

    def look(self) -> str | None:
        """Describe what hangs; None if nothing does."""
        stopped = {name for name, pid in self.processes.items() if _is_stopped(pid)}
        # Twice, because Ctrl-Z and fg reach a process group one by one.
        twice, self._stopped = stopped & self._stopped, stopped
        if twice:
            return f"{', '.join(sorted(twice))} was stopped by a signal (SIGSTOP)"
        before, self._last = self._last, self.last_heartbeat()
        same = self._last is not None and self._last == before
        self._quiet_looks = self._quiet_looks + 1 if same else 0
        seconds = self._quiet_looks * LOOK_SECONDS
        if self.limit is None or seconds < self.limit:
            return None
        return (
            f"{', '.join(self.processes)} was silent for {seconds:.0f} s while work waited for it "
            "(if the work is just slow, raise hang_timeout)"
        )


def _is_stopped(pid: int) -> bool:
    """Whether a signal stopped it; a process in a debugger has STATUS_TRACING_STOP instead."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
