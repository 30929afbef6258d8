"""Leaves out of imports what takes long and is not used; a start is mostly imports."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import inspect
import os
import sys
import threading
import types
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

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
_NO_DYNAMO = "TORCHDYNAMO_DISABLE"


@contextlib.contextmanager
def quick_imports(without: Collection[str] = ()) -> Iterator[None]:
    """Make the imports of the block quicker. without: packages that are to seem not installed."""
    with (
        _no_collections(),
        _modules_later(),
        _nothing_compiled(),
        _quick_frames(),
        _left_out(without),
    ):
        yield


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Switch the garbage collector off: it would look through a million objects again and again and
    find nothing, for a fifth of the time. Nor does it look at them all at the end."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else the caller has frozen objects, and they stay so
            gc.freeze()
            gc.unfreeze()  # which makes them old objects, without a look at them
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _modules_later() -> Iterator[None]:
    """Import the modules of `_LATER` when they are used."""
    stand_ins = {name: _Later(name) for name in _LATER}
    for name, later in stand_ins.items():
        package, *inner = name.split(".")
        with contextlib.suppress(ValueError):  # a module without a spec, as tests make them
            installed = importlib.util.find_spec(package)
            if installed is not None and installed.submodule_search_locations:
                later.__path__ = [str(Path(installed.submodule_search_locations[0], *inner))]
                sys.modules.setdefault(name, later)
    try:
        yield
    finally:
        for name, later in stand_ins.items():
            if sys.modules.get(name) is later:
                del sys.modules[name]


class _Later(types.ModuleType):
    """Stands for a module, and imports it when what `_LATER` names is called, or when it
    is asked for anything else."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        for function in _LATER[name]:
            setattr(self, function, functools.partial(_call, name, function))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` asks every module for its __file__
            raise AttributeError(name)
        return getattr(_imported(self.__name__), name)


def _call(module: str, function: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(_imported(module), function)(*args, **kwargs)


def _imported(name: str) -> Any:
    if isinstance(sys.modules.get(name), _Later):
        del sys.modules[name]
    return importlib.import_module(name)


@contextlib.contextmanager
def _nothing_compiled() -> Iterator[None]:
    before = os.environ.get(_NO_DYNAMO)
    compile_nothing()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_NO_DYNAMO, None)


def compile_nothing() -> None:
    """Let `torch.compile` return functions as they are, where `TORCH_COMPILE_DISABLE` asks for it.
    By itself that lets it import the whole compiler, which then calls them as they are (torch
    2.9.1, `_dynamo/eval_frame.py`)."""
    if os.environ.get("TORCH_COMPILE_DISABLE") == "1":
        os.environ.setdefault(_NO_DYNAMO, "1")


@contextlib.contextmanager
def _quick_frames() -> Iterator[None]:
    """Let `inspect` find a frame's module by its name, instead of by the files of all modules, and
    leave out the line's source. PyTorch (2.9.1, `library.py`) asks for them at each operator."""
    with _inspecting:
        _inside.append(None)
        inspect.getframeinfo, inspect.getmodule = _describe_shortly, _module_of
    try:
        yield
    finally:
        with _inspecting:  # another thread may still be in such a block
            _inside.pop()
            if not _inside:
                inspect.getframeinfo, inspect.getmodule = _describe, _search


_inspecting, _inside = threading.Lock(), list[None]()
_describe, _search = inspect.getframeinfo, inspect.getmodule


def _describe_shortly(frame: Any, context: int = 1) -> Any:
    return _describe(frame, context=0)


def _module_of(object: object, _filename: str | None = None) -> types.ModuleType | None:
    if isinstance(object, types.FrameType):
        module = sys.modules.get(object.f_globals.get("__name__", ""))
        if module is not None:
            return module
    return _search(object, _filename)


@contextlib.contextmanager
def _left_out(packages: Collection[str]) -> Iterator[None]:
    absent = [name for name in packages if name not in sys.modules]
    leave_out(absent)
    try:
        yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)


def leave_out(packages: Collection[str]) -> None:
    """Let imports of these packages raise `ImportError`."""
    sys.modules.update(dict.fromkeys(packages))  # type: ignore[arg-type]


@contextlib.contextmanager
def models_listed_once() -> Iterator[None]:
    """Let Transformers (4.57.1, `utils/import_utils.py`) read its 1,500 model files once: its
    `__init__.py` and that of its `models` give one folder two names, and it keeps a list for each.
    """
    import transformers
    from transformers.utils import import_utils

    list_folder: Any = import_utils.create_import_structure_from_path
    folder = Path(transformers.__file__).with_name("models")

    def list_once(path: Any) -> Any:
        return list_folder(folder if Path(path) == folder / "__init__.py" else path)

    import_utils.create_import_structure_from_path = list_once
    try:
        yield
    finally:
        import_utils.create_import_structure_from_path = list_folder
