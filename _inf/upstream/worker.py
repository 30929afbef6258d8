"""What runs in the engine's child processes: SGLang's own scheduler, made safe to own.

Light on purpose: a child imports this module before anything else, so nothing of SGLang is imported
at the top. It corrects, in the child only (sglang 0.5.9, `srt/managers/scheduler.py`,
`srt/distributed/parallel_state.py`):

- a child that fails sends SIGQUIT to its parent, which kills the caller's process: here it exits,
  and the parent notices by the process' sentinel;
- a child is killed and never comes to its clean-up: here its temporary files (wandb's and torch's,
  made while they are imported) lie in the engine's folder, which the parent removes;
- a child inherits the terminal: here its output goes to the engine's log file, and Ctrl-C, which
  the terminal sends to the whole process group, does not reach it;
- the rendezvous of the schedulers listens on every interface: here it is a file.

What the scheduler itself gets wrong is corrected by `_inf.upstream.scheduler`, what its models get
wrong by `_inf.upstream.loading` and `_inf.upstream.model_fixes`; attention on a CPU is
`_inf.upstream.attention`'s.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
import multiprocessing.spawn
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

SCHEDULER = "sglang.srt.managers.scheduler:run_scheduler_process"
PR_SET_PDEATHSIG = 1


class Worker:
    """One of SGLang's process functions, by name, with the log file that its output goes to.

    Unpickling it in the child is the first thing that happens there, before SGLang's arguments are
    unpickled (which imports SGLang): that is where the child is fenced.
    """

    def __init__(
        self, function: str, log: Path, *, cpu_attention: bool, trust_remote_code: bool
    ) -> None:
        self.function = function
        self.log = log
        self.cpu_attention = cpu_attention
        self.trust_remote_code = trust_remote_code
        self.parent = os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._die_with_the_parent()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(dir=self.log.parent)
        # OpenMP's threads spin for each other; the default is 3 times slower beside other work.
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
        with open(self.log, "ab", buffering=0) as log, open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)

    def _die_with_the_parent(self) -> None:
        """SGLang asks for this too, but seconds later, when its imports are done."""
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self.parent:
            os._exit(1)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        import tqdm

        from _inf.upstream.loading import check_loading
        from _inf.upstream.model_fixes import fix_models
        from _inf.upstream.scheduler import mend_scheduler
        from _inf.upstream.signs import leave_signs

        # tqdm's own is a named semaphore, which a killed child leaks and Python then complains of.
        tqdm.tqdm.set_lock(threading.RLock())
        # A hundred lines about models that this machine could not run and nobody asked for.
        logging.getLogger("sglang.srt.models.registry").setLevel(logging.ERROR)
        module, function = self.function.split(":")
        run = getattr(importlib.import_module(module), function)
        _exit_instead_of_signalling_the_parent()
        _meet_in_a_file(self.log.with_name("rendezvous"))
        mend_scheduler()
        fix_models()
        check_loading(trust_remote_code=self.trust_remote_code)
        if self.cpu_attention:
            from _inf.upstream.attention import register_cpu_attention

            register_cpu_attention()
        leave_signs()
        run(*args, **kwargs)


def _exit_instead_of_signalling_the_parent() -> None:
    import psutil

    send_signal = psutil.Process.send_signal

    def guarded(process: psutil.Process, sig: int) -> None:
        if sig != signal.SIGQUIT:
            send_signal(process, sig)
            return
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)

    psutil.Process.send_signal = guarded  # type: ignore[method-assign, assignment]


def _meet_in_a_file(path: Path) -> None:
    import torch.distributed

    initialize = torch.distributed.init_process_group

    def guarded(*args: Any, init_method: str | None = None, **kwargs: Any) -> None:
        if init_method is not None and init_method.startswith("tcp://127.0.0.1:"):
            # Not as a file:// URL, in which torch would look for a space as "%20", for ever.
            store = torch.distributed.FileStore(str(path), kwargs["world_size"])
            init_method, kwargs["store"] = None, store
        initialize(*args, init_method=init_method, **kwargs)

    torch.distributed.init_process_group = guarded


class WorkerProcess(SpawnProcess):
    """A spawned process that does not import the caller's main module again.

    Plain `spawn` does, which starts a second engine from every script without a `__main__` guard.
    """

    def start(self) -> None:
        with _main_module_hidden():
            super().start()


@contextlib.contextmanager
def _main_module_hidden() -> Iterator[None]:
    prepare = multiprocessing.spawn.get_preparation_data
    here = threading.get_ident()

    def without_main(name: str) -> dict[str, Any]:
        data = prepare(name)
        if threading.get_ident() == here:
            data.pop("init_main_from_name", None)
            data.pop("init_main_from_path", None)
        return data

    multiprocessing.spawn.get_preparation_data = without_main
    try:
        yield
    finally:
        multiprocessing.spawn.get_preparation_data = prepare
