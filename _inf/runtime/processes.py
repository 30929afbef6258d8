"""Starts the child processes of an engine, ends them with their parent, and finds ones that hang.

A child imports this module before anything else, so nothing heavy is imported at the top. Its
temporary files are in the engine's folder, which the parent removes, because a killed child does
not clean up. It ignores Ctrl-C, which a terminal sends to the whole process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import multiprocessing.context
import multiprocessing.spawn
import os
import pkgutil
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from _inf.errors import InferenceError
from _inf.runtime.interpreter import set_torch_variables

PR_SET_PDEATHSIG = 1
JOIN_SECONDS = 10.0
LOOK_SECONDS = 1.25
PREFIX, LOG_TAIL_LINES = "inf-engine-", 15
SOCKET, MAX_SOCKET_BYTES = "tmp12345678", 107  # as upstream names them; Linux, unix(7)


class EngineFolder:
    """Creates the temporary folder of an engine, which only its user can read: its log, and the
    sockets between its processes. sockets: whether it will have some, whose paths must be short
    enough for the kernel."""

    def __init__(self, *, sockets: bool) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        excess = len(os.fsencode(self.path / SOCKET)) - MAX_SOCKET_BYTES
        if sockets and excess > 0:
            self.path.rmdir()
            raise InferenceError(
                f"{tempfile.gettempdir()}: the path of the temporary folder is {excess} bytes too "
                "long for the engine's sockets; set TMPDIR to a shorter one."
            )
        self.log = self.path / "engine.log"
        self.log.touch(mode=0o600)

    def read_log(self) -> str:
        """The whole log; "" if it is gone."""
        with contextlib.suppress(OSError):
            return self.log.read_text(errors="replace")
        return ""

    def end_of_log(self) -> str:
        """The last lines of the log, below a line that names its path."""
        tail = "\n".join(self.read_log().splitlines()[-LOG_TAIL_LINES:])
        return f"The end of its log, {self.log}:\n{tail or '(empty)'}"

    def remove(self, *, keep_log: bool) -> None:
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path != self.log:
                path.unlink(missing_ok=True)
        if not keep_log:
            shutil.rmtree(self.path, ignore_errors=True)


class Worker:
    """The function that a child runs, and the log file for its output.

    function, setup: as "module:name"; `setup` is called first, with the log's path and
        `setup_arguments`.

    A child unpickles it before the function's arguments, whose unpickling may import anything.
    """

    def __init__(self, function: str, log: Path, *, setup: str, **setup_arguments: object) -> None:
        self.function, self.log = function, log
        self.setup, self.setup_arguments = setup, setup_arguments
        self.parent = os.getpid()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "environment": dict(os.environ)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        environment = state.pop("environment")
        self.__dict__.update(state)
        die_with(self.parent)
        if environment != os.environ:  # a fork has an earlier one
            os.environ.clear()
            os.environ.update(environment)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(dir=self.log.parent)
        set_torch_variables()
        with open(self.log, "ab", buffering=0) as log, open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)

    def __call__(self, *args: object, **kwargs: object) -> None:
        pkgutil.resolve_name(self.setup)(self.log, **self.setup_arguments)
        pkgutil.resolve_name(self.function)(*args, **kwargs)


def block_interrupts() -> None:
    """Block Ctrl-C in this thread. Its children inherit that until they can ignore it."""
    resource_tracker.ensure_running()  # started by the first child, it would undo the mask
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def die_with(parent: int) -> None:
    """Let the kernel kill this process with its parent, in fact with the thread that started it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


class WorkerProcess(SpawnProcess):
    """A spawned process that does not import the caller's main module again.

    Plain `spawn` does, so a script without a `__main__` guard would start a second engine.
    """

    def start(self) -> None:
        with _main_module_hidden():
            super().start()

    def kill_tree(self) -> None:
        if self.pid is None or self.exitcode is not None:
            return
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        self.kill()
        self.join(JOIN_SECONDS)


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    prepare = multiprocessing.spawn.get_preparation_data
    here = threading.get_ident()
    contexts: Any = multiprocessing.context._default_context

    def without_main(name: str) -> dict[str, object]:
        start_method = contexts._actual_context
        data = prepare(name)
        contexts._actual_context = start_method  # which that has set, if the caller had not
        if threading.get_ident() == here:
            data.pop("init_main_from_name", None)
            data.pop("init_main_from_path", None)
        return data

    multiprocessing.spawn.get_preparation_data = without_main
    try:
        yield
    finally:
        multiprocessing.spawn.get_preparation_data = prepare


@dataclasses.dataclass
class Watch:
    """Finds out whether processes hang: stopped by a signal, or silent with work waiting. Call
    `look` every `LOOK_SECONDS`: time is counted in calls, because after the caller was stopped
    (Ctrl-Z) or the machine slept, a clock would blame the child.

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
    import psutil

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.NoSuchProcess:
        return False
