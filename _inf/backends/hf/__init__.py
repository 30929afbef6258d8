"""The backend on Transformers, in the caller's process, on a thread of its own. It computes what
Transformers' own classes compute, so it is also what other backends are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _inf.backends.description import BackendDescription, Faults
from _inf.backends.hf.modes import ARGUMENTS, HF_MODE
from _inf.errors import did_you_mean, shown
from _inf.runtime.interpreter import garbage_kept, set_torch_variables

if TYPE_CHECKING:
    from _inf.backends.base import Backend
    from _inf.config import Config

QUANTIZATIONS = ("4bit", "8bit")


def _launch(config: Config) -> Backend:
    with garbage_kept():
        from _inf.backends.hf.launch_hf import launch

    return launch(config)


def _faults(config: Config) -> Faults:
    for key, value in config.rollout.engine_kwargs.get("hf", {}).items():
        if key != "quantization":
            yield f"{ARGUMENTS}.{key}", f"unknown key{did_you_mean(key, ['quantization'])}"
        elif value is not None and value not in QUANTIZATIONS:
            known = " or ".join(QUANTIZATIONS)
            yield f"{ARGUMENTS}.{key}", f"must be {known}, not {shown(value)}"


HF = BackendDescription(
    name="hf",
    launch=_launch,
    modes=(HF_MODE,),
    faults=_faults,
    prepare=lambda config: set_torch_variables(),  # before PyTorch is imported
)
