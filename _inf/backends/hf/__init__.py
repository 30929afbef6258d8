"""The backend on Transformers, in the caller's process, on a thread of its own. It computes what
Transformers' own classes compute, so it is also what other backends are compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from _inf.backends.description import BackendDescription
from _inf.backends.hf.modes import HF_MODE
from _inf.runtime.interpreter import garbage_kept, set_torch_variables

if TYPE_CHECKING:
    from _inf.backends.base import Backend
    from _inf.config import Config


def _launch(config: Config) -> Backend:
    with garbage_kept():
        from _inf.backends.hf.launch_hf import launch

    return launch(config)


HF = BackendDescription(
    name="hf",
    launch=_launch,
    modes=(HF_MODE,),
    prepare=lambda config: set_torch_variables(),  # before PyTorch is imported
)
