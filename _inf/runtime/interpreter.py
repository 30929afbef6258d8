"""Undoes what imports do to the caller's interpreter (SGLang's settings, lost Ctrl-C), and leaves
out of them what takes long and is not used; a start is mostly imports."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.util
import logging
import multiprocessing.context
import os
import signal
import sys
import threading
import types
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from pathlib import Path
from types import FrameType
from typing import Any

# What PyTorch reads when it is imported, for a model on a CPU. An OpenMP thread without work spins
# before it sleeps for as long as the small operators between two products take; the default is 3
# times slower on a busy machine. Large tensors are in pages of 2 MB, so that reading the weights
# looks up fewer addresses; where the machine has none, nothing changes.
TORCH_VARIABLES = {"GOMP_SPINCOUNT": "10000", "THP_MEM_ALLOC_ENABLE": "1"}
# Modules, and what is imported from them at a start but not called: for assisted generation, object
# detection and quantized weights (transformers 4.57.1: `generation/candidate_generator.py`,
# `loss/loss_for_object_detection.py`, `quantizers/auto.py`), SGLang's own HTTP server (verl 0.6.1:
# `http_server_engine.py`), and notebooks (sglang 0.5.9: `utils.py`).
_LATER: dict[str, tuple[str, ...]] = {
    "sklearn.metrics": ("roc_curve",),
    "scipy.optimize": ("linear_sum_assignment",),
    "transformers.quantizers.quantizer_torchao": ("TorchAoHfQuantizer",),
    "sglang.srt.entrypoints.http_server": ("launch_server",),
    "IPython.display": ("HTML", "display"),
}


@contextlib.contextmanager
def interpreter_left_alone() -> Iterator[None]:
    """Restore what an import of sglang changes: it sets uvloop's policy for the whole process,
    switches `threading._register_atexit` off (`srt/entrypoints/engine.py`) and, through xgrammar,
    configures the root logger."""
    policy, register = asyncio.get_event_loop_policy(), threading._register_atexit  # type: ignore[attr-defined]
    handlers, level = list(logging.root.handlers), logging.root.level
    processes: Any = multiprocessing.context._default_context
    start_method = processes._actual_context
    try:
        yield
    finally:
        asyncio.set_event_loop_policy(policy)
        threading._register_atexit = register  # type: ignore[attr-defined]
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
        processes._actual_context = start_method


@contextlib.contextmanager
def quick_imports(without: Collection[str] = ()) -> Iterator[None]:
    """Leave out of the block's imports what takes long and is not used. without: packages that are
    to seem not installed."""
    modules, env = {**_stand_ins(), **dict.fromkeys(without)}, not_compiled()
    with _no_collections(), _added(sys.modules, modules), _added(os.environ, env):
        yield


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Switch the garbage collector off: it would look through a million objects again and again and
    find nothing, for a fifth of the time. Nor does it look at them all at the end."""
    enabled, imported = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        # Objects that the caller has frozen stay so; counting them may take a tenth of a second.
        if len(sys.modules) > imported and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # which makes them old objects, without a look at them
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _added(to: MutableMapping[str, Any], entries: Mapping[str, Any]) -> Iterator[None]:
    """Within the block there are these entries too, where there were none."""
    ours = {name: value for name, value in entries.items() if name not in to}
    to.update(ours)
    try:
        yield
    finally:
        for name, value in ours.items():
            if to.get(name) == value:
                to.pop(name, None)


def _stand_ins() -> dict[str, _Later]:
    """Of the modules of `_LATER` whose package is installed."""
    found = {}
    for name in _LATER:
        package, *inner = name.split(".")
        with contextlib.suppress(ValueError):  # a module without a spec, as tests make them
            installed = importlib.util.find_spec(package)
            if installed is not None and installed.submodule_search_locations:
                found[name] = _Later(name, Path(installed.submodule_search_locations[0], *inner))
    return found


class _Later(types.ModuleType):
    """Stands for a module, and imports it when what `_LATER` names is called, or when it
    is asked for anything else."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.__path__ = [str(folder)]
        vars(self).update(
            {called: functools.partial(_call, name, called) for called in _LATER[name]}
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` asks every module for its __file__
            raise AttributeError(name)
        return getattr(_imported(self.__name__), name)


def _call(module: str, function: str, *args: object, **kwargs: object) -> object:
    return getattr(_imported(module), function)(*args, **kwargs)


def _imported(name: str) -> types.ModuleType:
    if isinstance(sys.modules.get(name), _Later):
        del sys.modules[name]
    return importlib.import_module(name)


def not_compiled() -> dict[str, str]:
    """The variable with which `torch.compile` returns functions as they are, where
    `TORCH_COMPILE_DISABLE` asks for it. By itself that lets it import the whole compiler, which
    then calls them as they are (torch 2.9.1, `_dynamo/eval_frame.py`)."""
    return {"TORCHDYNAMO_DISABLE": "1"} if os.environ.get("TORCH_COMPILE_DISABLE") == "1" else {}


def set_torch_variables() -> None:
    for name, value in TORCH_VARIABLES.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def interrupt_kept() -> Iterator[None]:
    """Raise `KeyboardInterrupt` after the block if Ctrl-C came within it and was lost: Python
    prints and ignores an exception in a weak reference's callback, which every import has."""
    interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        signal.default_int_handler(number, frame)

    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # Ctrl-C is ignored, or somebody else's
        return

    def without_a_lost_one(lost: sys.UnraisableHookArgs) -> None:
        if not (interrupted and lost.exc_type is KeyboardInterrupt):
            report(lost)

    report, sys.unraisablehook = sys.unraisablehook, without_a_lost_one
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        sys.unraisablehook = report
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupted:
            raise KeyboardInterrupt
