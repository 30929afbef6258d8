"""What needs packages that `pip install inf-engine` alone does not bring, and how to get them."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

from _inf.errors import ConfigError

# All that needs verl, and so the extra `verl`: its name in messages, and what verl does for it.
NEEDS_VERL = {
    "rollout.name": "sglang is the rollout that verl trains with",
    "trainer_batch": "a trainer's batch is a verl DataProto",
    "rollout_batch": "a trainer's batch is a verl DataProto",
}


@functools.cache
def has_verl() -> bool:
    """Whether verl and SGLang are installed; looks for them without importing them."""
    return all(importlib.util.find_spec(name) for name in ("verl", "sglang"))


def require_verl(name: str) -> None:
    """Refuse `name`, a key of `NEEDS_VERL`, where verl is not installed."""
    if not has_verl():
        raise ConfigError.of(name, without_verl(name))


def without_verl(name: str) -> str:
    checkout = (Path(__file__).parents[2] / "install.sh").exists()  # not in the wheel
    command = "bash install.sh" if checkout else "pip install 'inf-engine[verl]'"
    return (
        f"{NEEDS_VERL[name]}, and verl is not installed in {sys.prefix}: it is the extra verl of "
        f"inf-engine; run `{command}`"
    )
