"""The patches: what verl's and SGLang's modules reach for by a global name, exchanged for ours.

Each stand-in says what it corrects (verl 0.6.1,
`workers/rollout/sglang_rollout/sglang_rollout.py`; sglang 0.5.9, under `srt/`). `mend` puts them in
place, once, when `_inf.backends.verl.rollout` is imported.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any

import torch

from _inf.backends.verl.engine import current_call, sglang_rollout
from _inf.runtime.host import current_host
from _inf.runtime.interpreter import interpreter_left_alone

with interpreter_left_alone():
    import sglang.srt.entrypoints.engine as sglang_engine
    import sglang.srt.managers.tokenizer_manager as tokenizer_manager
    import sglang.srt.server_args as sglang_server_args
    import sglang.srt.utils.patch_torch as patch_torch
    from verl.workers.rollout.sglang_rollout.utils import broadcast_pyobj


def _broadcast(data: list[Any], rank: int, dist_group: Any, **kwargs: Any) -> list[Any]:
    """In place of verl's `broadcast_pyobj`, which pickles every answer also for a group of one."""
    if torch.distributed.get_world_size(dist_group) == 1:
        return data
    return list(broadcast_pyobj(data, rank, dist_group, **kwargs))


class _ModuleProxy:
    """Stands in for a module inside one upstream module; what is not overridden passes through."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class _Asyncio(_ModuleProxy):
    """`get_event_loop().run_until_complete(...)` in verl's module: on the calling engine's loop."""

    def get_event_loop(self) -> _Asyncio:
        return self

    def run_until_complete(self, work: Coroutine[Any, Any, Any]) -> Any:
        call = current_call.get()
        return call.host.run(work, call.cancel)


class _Distributed(_ModuleProxy):
    """The ranks of one tensor-parallel group meet in `broadcast_pyobj`; that all ranks of the world
    do in each call would make a rank with fewer prompts, or a refused one, hold up the others."""

    def barrier(self) -> None:
        pass


class _Multiprocessing(_ModuleProxy):
    """SGLang's children become the host's; the process-wide start method stays the caller's."""

    def Process(self, target: Any, **kwargs: Any) -> Any:  # noqa: N802
        """Without a tokenizer the scheduler answers the parent directly (`scheduler.py`,
        `init_ipc_channels`) and the detokenizer would idle: 13 CPU seconds of imports, 700 MB."""
        if target is sglang_engine.run_detokenizer_process:
            return _NoProcess()
        return current_host.get().process(target, **kwargs)

    def set_start_method(self, *args: Any, **kwargs: Any) -> None:
        pass


class _NoProcess:
    """A process that nobody needs."""

    def start(self) -> None:
        pass


class _Tempfile(_ModuleProxy):
    """SGLang leaves six socket files an engine behind (`PortArgs.init_new`); the host removes
    its."""

    def NamedTemporaryFile(self, **kwargs: Any) -> Any:  # noqa: N802
        return tempfile.NamedTemporaryFile(dir=current_host.get().folder, **kwargs)


async def _report_instead_of_killing_the_caller(function: Any) -> None:
    """In place of `tokenizer_manager.print_exception_wrapper`, which kills the process tree."""
    try:
        await function()
    except Exception as failure:
        current_host.get().declare_dead(f"The engine's request handling failed with {failure!r}")


def _cpu_tensors_as_they_are(modify: Callable[..., Any]) -> Callable[..., Any]:
    """`patch_torch._modify_tuple` looks for a device past the end of what a CPU tensor reduces to
    (`utils/patch_torch.py`)."""
    return lambda t, index, modifier: modify(t, index, modifier) if index < len(t) else t


def mend() -> None:
    sglang_rollout.asyncio = _Asyncio(asyncio)
    sglang_rollout.dist = _Distributed(torch.distributed)
    sglang_rollout.mp = sglang_engine.mp = _Multiprocessing(multiprocessing)
    sglang_rollout.broadcast_pyobj = _broadcast
    sglang_server_args.tempfile = _Tempfile(tempfile)
    tokenizer_manager.print_exception_wrapper = _report_instead_of_killing_the_caller
    patch_torch._modify_tuple = _cpu_tensors_as_they_are(patch_torch._modify_tuple)
    # In the parent it replaces the root logger's handlers (`logging.basicConfig(force=True)`).
    sglang_engine.configure_logger = lambda *args, **kwargs: None
