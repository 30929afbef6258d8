"""What this backend supports, and which config keys it reads."""

from __future__ import annotations

from _inf.backends.base import FEATURES
from _inf.backends.description import OF_A_LOCAL_MODEL, Mode

ARGUMENTS = "rollout.engine_kwargs.hf"
HF_MODE = Mode(
    "hf",
    supports=frozenset(FEATURES) - {"sleep", "routed_experts"},
    reads=OF_A_LOCAL_MODEL | {ARGUMENTS},
)
