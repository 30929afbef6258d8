"""The table of all patches of verl 0.6.1 and sglang 0.5.9 in the caller's process, and why.

It is applied once, when `_inf.backends.verl.corrected_rollout` is imported. Most rows replace a
module that verl's or SGLang's code uses by a global name. A rollout of verl's own in the same
process finds upstream's behaviour: outside of our calls, and of the starts of our engines.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from _inf.backends.verl.calls import Call, current_call
from _inf.backends.verl.engine import Engine, build_engine
from _inf.backends.verl.patch_table import Replace, Wrap
from _inf.runtime.host import current_host

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class _Module:
    """Takes the place of a module inside one upstream module, with some attributes replaced."""

    def __init__(self, module: ModuleType, **replaced: object) -> None:
        self._module = module
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _engine(**arguments: object) -> object:
    build = build_engine.get(None) or Engine.__mro__[1]
    return build(**arguments)


def _event_loop() -> Call | asyncio.AbstractEventLoop:
    return current_call.get(None) or asyncio.get_event_loop()


def _barrier(*args: object, **kwargs: object) -> object:
    ours = current_call.get(None) is not None
    return None if ours else torch.distributed.barrier(*args, **kwargs)


def _set_start_method(method: str | None, force: bool = False) -> None:
    if current_host.get(None) is None:
        multiprocessing.set_start_method(method, force=force)


def _process(target: Any, **kwargs: Any) -> object:
    """A child of the host's, or nothing for the detokenizer: without a tokenizer the scheduler
    answers the parent directly (`scheduler.py`, `init_ipc_channels`), and the detokenizer would
    idle, after 13 CPU seconds of imports and with 700 MB."""
    if (host := current_host.get(None)) is None:
        return multiprocessing.Process(target=target, **kwargs)
    if getattr(target, "__name__", None) == "run_detokenizer_process":
        return SimpleNamespace(start=lambda: None)
    return host.process(target, **kwargs)


def _temporary_file(**kwargs: Any) -> object:
    host = current_host.get(None)
    return tempfile.NamedTemporaryFile(
        **(kwargs if host is None else {"dir": host.folder} | kwargs)
    )


def _keep_logger(configure: Callable[..., None], *args: object, **kwargs: object) -> None:
    if current_host.get(None) is None:
        configure(*args, **kwargs)


def _broadcast(
    broadcast: Callable[..., object], data: list[object], *args: object, **kwargs: object
) -> object:
    call = current_call.get(None)  # None while an engine starts
    return broadcast(data, *args, **kwargs) if call is None else call.broadcast(data)


async def _declare_dead_on_failure(
    upstream: Callable[..., Awaitable[None]], function: Callable[[], Awaitable[None]]
) -> None:
    if (host := current_host.get(None)) is None:
        return await upstream(function)
    try:
        await function()
    except Exception as failure:
        host.declare_dead(f"The engine's request handling failed with {failure!r}")


def _modify_within(
    modify: Callable[..., object], reduced: Sequence[object], index: int, modifier: object
) -> object:
    return modify(reduced, index, modifier) if index < len(reduced) else reduced


def _gpu_memory() -> int:
    """MiB of the GPU that an engine of this process takes."""
    return int(torch.cuda.get_device_properties(0).total_memory) >> 20


def _memory_outside_of_calls(ask: Callable[..., object], *args: object, **kwargs: object) -> object:
    return ask(*args, **kwargs) if current_call.get(None) is None else ("0.00",) * 4


def _processor_if_any(load: Callable[..., object], folder: str, **kwargs: object) -> object:
    return load(folder, **kwargs) if any(Path(folder).glob("*processor_config.json")) else None


class _Inputs:
    """In place of SGLang's processor of a model: the requests bring what it would make."""

    def __init__(self, hf_config: PretrainedConfig) -> None:
        self._hf_config = hf_config

    async def process_mm_data_async(
        self, image_data: Sequence[Any], input_text: list[int], **others: object
    ) -> object:
        return image_data[0].of_request(input_text, self._hf_config)


def _inputs(
    upstream: Callable[..., object], hf_config: PretrainedConfig, *others: object
) -> object:
    return upstream(hf_config, *others) if current_host.get(None) is None else _Inputs(hf_config)


def _outside_of_our_starts(upstream: Callable[..., object], *arguments: object) -> object:
    return upstream(*arguments) if current_host.get(None) is None else None


_VERL = "verl.workers.rollout.sglang_rollout.sglang_rollout"
_ENGINE = "sglang.srt.entrypoints.engine"
_PROCESSES = _Module(multiprocessing, Process=_process, set_start_method=_set_start_method)
# fmt: off
PATCHES = (
    Replace(f"{_VERL}:AsyncEngine", _engine, "it names the class of the engine that it builds"),
    Replace(f"{_VERL}:asyncio", _Module(asyncio, get_event_loop=_event_loop),
            "it works on the main thread only, and in no running event loop"),
    Replace(f"{_VERL}:dist", _Module(torch.distributed, barrier=_barrier),
            "in each call all ranks of the world wait at a barrier: a rank with fewer prompts, or "
            "with a refused prompt, would block the others; tensor-parallel groups meet in "
            "`broadcast_pyobj` anyway"),
    Replace(f"{_VERL}:mp", _PROCESSES, "it sets the start method of the whole process"),
    Wrap(f"{_VERL}:broadcast_pyobj", _broadcast,
         "it pickles every answer even for a group of one, and if the first rank fails before it, "
         "the others wait there and take its next answer for theirs"),
    Replace(f"{_ENGINE}:mp", _PROCESSES,
            "its children outlive a killed parent, and nothing notices when they die"),
    Wrap(f"{_ENGINE}:configure_logger", _keep_logger,
         "in the parent it replaces the root logger's handlers"),
    Replace("sglang.srt.server_args:tempfile",
            _Module(tempfile, NamedTemporaryFile=_temporary_file),
            "PortArgs.init_new never removes an engine's six socket files"),
    Replace("sglang.srt.utils.common:get_nvgpu_memory_capacity", _gpu_memory,
            "it needs nvidia-smi, which some containers lack, and asks for the smallest GPU of the "
            "machine, also one that is hidden, and for a whole one where this is a part (MIG)"),
    Wrap("verl.workers.config.model:hf_processor", _processor_if_any,
         "of a model without a processor it loads the tokenizer, a second time, and drops it"),
    Wrap("verl.utils.profiler.performance:_get_current_mem_info", _memory_outside_of_calls,
         "each call asks the GPU four times for its free memory, which nobody reads, and for "
         "which CUDA takes half a gigabyte in the caller's process"),
    Wrap("sglang.srt.managers.tokenizer_manager:print_exception_wrapper",
         _declare_dead_on_failure, "it kills the caller's process and all its children"),
    *(Wrap(f"sglang.srt.managers.tokenizer_manager:{name}", _outside_of_our_starts,
           "it imports all models that read images, and loads the processor of the one it serves")
      for name in ("import_processors", "_get_processor_wrapper")),
    Wrap("sglang.srt.managers.tokenizer_manager:get_mm_processor", _inputs,
         "multimodal/processors/ decode the prompt's ids, and encode the text again"),
    Wrap("sglang.srt.utils.patch_torch:_modify_tuple", _modify_within,
         "it looks for a device past the end of what a CPU tensor reduces to"),
)
# fmt: on
