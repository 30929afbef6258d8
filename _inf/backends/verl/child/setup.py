"""Applies every patch in the scheduler's process before SGLang's own function runs."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from _inf.backends.verl.cuda import leave_out_deep_gemm

if TYPE_CHECKING:
    import psutil

SCHEDULER = "sglang.srt.managers.scheduler:run_scheduler_process"
SETUP = "_inf.backends.verl.child.setup:set_up"
IMPORTS = "_inf.backends.verl.child.setup:import_all"


def import_all(log: Path) -> None:
    """Import what `set_up` and the scheduler need, and name the process.

    A fork can name itself only if this was done before its environment was set.
    """
    import setproctitle

    setproctitle.setproctitle("inf::fork_server")
    from _inf.runtime.interpreter import garbage_kept

    with garbage_kept():
        import sglang.srt.managers.scheduler  # noqa: F401  before it is patched

        import _inf.backends.verl.child.attention
        import _inf.backends.verl.child.scheduler_patches  # noqa: F401


def set_up(
    log: Path, *, device: str, cpu_attention: bool, pack_weights: bool, trust_remote_code: bool
) -> None:
    """Set up the child, whose stdout is `log`."""
    if device == "cuda":
        leave_out_deep_gemm()
    import tqdm

    # tqdm's default is a named semaphore; a killed child leaks it, and Python warns about it.
    tqdm.tqdm.set_lock(threading.RLock())
    # A hundred lines about other models that this machine could not run.
    logging.getLogger("sglang.srt.models.registry").setLevel(logging.ERROR)
    # Triton's products of float32 are TF32 otherwise, which has 10 bits of the mantissa's 23.
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")
    import sglang.srt.managers.scheduler  # noqa: F401  before it is patched

    from _inf.backends.verl.child.grammar_fixes import register_grammars
    from _inf.backends.verl.child.scheduler_patches import patches
    from _inf.backends.verl.patch_table import apply

    register_grammars()
    apply(patches(log.parent, trust_remote_code=trust_remote_code, pack_weights=pack_weights))
    if cpu_attention:
        from _inf.backends.verl.child.attention import register_cpu_attention

        register_cpu_attention()


def exit_instead_of_sigquit(
    send_signal: Callable[[psutil.Process, int], None], process: psutil.Process, sig: int
) -> None:
    """Exit the process; the parent notices that by the process' sentinel."""
    if sig != signal.SIGQUIT:
        send_signal(process, sig)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def meet_in_a_file(
    path: Path,
    initialize: Callable[..., None],
    *args: object,
    init_method: str | None = None,
    **kwargs: object,
) -> None:
    """Call `torch.distributed.init_process_group` with a file in place of a local port."""
    import torch.distributed

    if init_method is not None and init_method.startswith("tcp://127.0.0.1:"):
        # Not a file:// URL: torch would wait without end for a path with "%20" for a space.
        store = torch.distributed.FileStore(str(path), kwargs["world_size"])
        init_method, kwargs["store"] = None, store
    initialize(*args, init_method=init_method, **kwargs)
