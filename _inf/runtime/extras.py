"""What needs packages beyond those of `pip install inf-engine`, and how to install them."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
from pathlib import Path

from _inf import __version__
from _inf.errors import ConfigError

# The extras of inf-engine that commands need, each with the modules that it brings.
EXTRAS = {
    "verl": ("verl", "sglang"),
    "ray": ("ray",),
    "mcp": ("mcp",),
    "reasoning-gym": ("reasoning_gym",),
}
# All that needs the extra `verl`: the key, the call or the option as it is written, and the reason.
NEEDS_VERL = {
    "rollout.name": "sglang is the rollout that verl trains with",
    "rollout_batch()": "a trainer's batch is a verl DataProto",
    "trainer_batch()": "a trainer's batch is a verl DataProto",
    "rollouts_to_data_proto": "a trainer's batch is a verl DataProto",
    "against": "a file of DataProto.save_to_disk is read by verl (a .safetensors file is not)",
    "model_path": "the shards of verl's FSDP trainer are merged by verl's model_merger",
    "rollout.multi_turn.format": "its calls are read by SGLang's parser, which comes with verl",
    "rollout.multi_turn.tool_config_path": "the tool is a class of verl",
    "rollout.multi_turn.interaction_config_path": "interactions are classes of verl",
    "rollout.agent.default_agent_loop": "agent loops are classes of verl",
    "rollout.agent.agent_loop_config_path": "agent loops are classes of verl",
    "agent_loop": "agent loops are classes of verl",
    "reward": "without a reward function of your own, verl's default_compute_score scores answers",
    "gsm8k": "its answers are scored by verl's two rules unless --reward names a function",
    "metrics": "best@k, worst@k and maj@k are verl's process_validation_metrics",
    "check": "training/rollout_probs_diff_* and rollout_corr/* are verl's metrics",
    "check turns": "the third path is verl's own builder",
}
# What of it verl 0.7 to 0.9 have as well, with or without SGLang.
OF_ANY_VERL = frozenset(
    ("rollout_batch()", "trainer_batch()", "rollouts_to_data_proto", "against", "model_path")
    + ("reward", "gsm8k", "metrics", "check", "check turns")
)
STACK = ("verl", "sglang", "torch", "transformers")


@functools.cache
def installed(package: str) -> str:
    """The version of a package, or "" if it is not installed; does not import it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


@functools.cache
def has(extra: str) -> bool:
    """Whether an extra's modules are installed; looks for them without importing them."""
    return all(importlib.util.find_spec(name) for name in EXTRAS[extra])


def has_verl() -> bool:
    """Whether SGLang is installed, and a verl that has SGLangRollout: 0.7 no longer has it."""
    return has("verl") and installed("verl").startswith("0.6.")


def require(extra: str, where: str = "") -> None:
    """Refuse what needs an extra that is not installed; where: what the message begins with."""
    if not has(extra):
        raise ConfigError(where + without(extra, f"{extra} is not installed"))


def without(extra: str, why: str) -> str:
    return f"{why}: pip install 'inf-engine[{extra}]'"


def require_verl(name: str) -> None:
    """Refuse `name`, a key of `NEEDS_VERL`, where verl is not installed."""
    if fault := without_verl(name):
        raise ConfigError.of(name, fault)


def lacks_verl(failure: Exception, name: str) -> str:
    """Why code for `name`, a key of `NEEDS_VERL`, could not be imported; "" if not for the lack of
    verl."""
    missing = failure.name if isinstance(failure, ModuleNotFoundError) else None
    return without_verl(name) if (missing or "").partition(".")[0] in EXTRAS["verl"] else ""


def without_verl(name: str) -> str:
    """Why `name`, a key of `NEEDS_VERL`, is not to be had here; "" where it is."""
    other = installed("verl")
    if has_verl() or (other and name in OF_ANY_VERL):
        return ""
    if other and not other.startswith("0.6."):
        return (
            f"{NEEDS_VERL[name]}; this needs verl 0.6.1, and {sys.prefix} has verl {other}: make "
            "an environment for it with `python -m venv inf-verl && inf-verl/bin/pip install "
            f"'inf_engine-{__version__}-py3-none-any.whl[verl]'`"
        )
    command = install_command("'inf-engine[verl]'")
    return (
        f"{NEEDS_VERL[name]}, and verl is not installed in {sys.prefix}: it is the extra verl of "
        f"inf-engine; run `{command}`"
    )


def install_command(packages: str) -> str:
    """The command that brings verl's stack: in a checkout its script, else pip's for `packages`."""
    checkout = (Path(__file__).parents[2] / "install.sh").exists()  # not in the wheel
    return "bash install.sh" if checkout else f"pip install {packages}"
