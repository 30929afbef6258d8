"""The child processes of an engine, which die with their parent and only then.

A child imports this module before anything else, so nothing heavy is imported at the top. Its
temporary files are in the engine's folder, which the parent removes, because a killed child does
not clean up. It ignores Ctrl-C, which a terminal sends to the whole process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing.context
import multiprocessing.spawn
import os
import pkgutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from _inf.runtime.interpreter import set_torch_variables

PR_SET_PDEATHSIG = 1
JOIN_SECONDS = 10.0


class Worker:
    """The function that a child runs, and the log file for its output.

    function, setup: as "module:name"; `setup` is called first, with the log's path and
        `setup_arguments`.

    A child unpickles it before the function's arguments, whose unpickling may import anything.
    """

    def __init__(self, function: str, log: Path, *, setup: str, **setup_arguments: Any) -> None:
        self.function, self.log = function, log
        self.setup, self.setup_arguments = setup, setup_arguments
        self.parent = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "environment": dict(os.environ)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        environment = state.pop("environment")
        self.__dict__.update(state)
        die_with(self.parent)
        if environment != os.environ:  # a fork has that of an earlier moment
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
            for process in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.kill()
        self.join(JOIN_SECONDS)


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    prepare = multiprocessing.spawn.get_preparation_data
    here = threading.get_ident()
    contexts: Any = multiprocessing.context._default_context

    def without_main(name: str) -> dict[str, Any]:
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
