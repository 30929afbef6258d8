"""The backend on Transformers, in the caller's process, on a thread of its own. It computes what
Transformers' own classes compute, so it is also what other backends are compared with."""

from __future__ import annotations

from _inf.backends.description import (
    OF_A_LOCAL_MODEL,
    SUPPORTED_LOCALLY,
    BackendDescription,
    Mode,
)
from _inf.parts.found import features
from _inf.runtime.interpreter import set_torch_variables

HF_MODE = Mode(
    "hf", supports=SUPPORTED_LOCALLY | {"logits"} | features("hf"), reads=OF_A_LOCAL_MODEL
)
HF = BackendDescription(
    name="hf",
    launch="_inf.backends.hf.launch_hf:launch",
    modes=(HF_MODE,),
    mode=lambda config: HF_MODE,
    prepare=lambda config: set_torch_variables(),  # before PyTorch is imported
)
