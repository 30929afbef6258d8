"""What the scheduler's process does before SGLang's own function runs: every correction, installed.

Two of them are here (sglang 0.5.9):

- a child that fails sends SIGQUIT to its parent (`srt/managers/scheduler.py`), which kills the
  caller's process: here it exits, and the parent notices by the process' sentinel;
- the rendezvous of the schedulers (`srt/distributed/parallel_state.py`) listens on every interface:
  here it is a file.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

SCHEDULER = "sglang.srt.managers.scheduler:run_scheduler_process"
SETUP = "_inf.backends.verl.child.setup:set_up"


def set_up(log: Path, *, cpu_attention: bool, trust_remote_code: bool) -> None:
    """Called in the child, whose stdout is `log`."""
    import tqdm

    # tqdm's own is a named semaphore, which a killed child leaks and Python then complains of.
    tqdm.tqdm.set_lock(threading.RLock())
    # A hundred lines about models that this machine could not run and nobody asked for.
    logging.getLogger("sglang.srt.models.registry").setLevel(logging.ERROR)
    import sglang.srt.managers.scheduler  # noqa: F401  before anything of it is corrected

    from _inf.backends.verl.child.grammar import install_grammars
    from _inf.backends.verl.child.heartbeat import install_heartbeat
    from _inf.backends.verl.child.loading import check_loading
    from _inf.backends.verl.child.model_fixes import fix_models
    from _inf.backends.verl.child.scheduler import mend_scheduler

    _exit_instead_of_signalling_the_parent()
    _meet_in_a_file(log.with_name("rendezvous"))
    mend_scheduler()
    install_grammars()
    fix_models()
    check_loading(trust_remote_code=trust_remote_code)
    if cpu_attention:
        from _inf.backends.verl.child.attention import register_cpu_attention

        register_cpu_attention()
    install_heartbeat()


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
