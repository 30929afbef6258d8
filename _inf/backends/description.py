"""Describes a backend, without importing it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from _inf.backends.base import Backend
    from _inf.config import Config

Faults: TypeAlias = "Iterator[tuple[str, str]]"  # the path of a key, and what is wrong there

# Config keys that several backends read.
OF_TOKENS = frozenset(
    {
        "trust_remote_code",
        "truncate_prompt",
        "rollout.top_k",
        "rollout.ignore_eos",
        "rollout.prompt_length",
        "rollout.max_model_len",
        "rollout.agent.default_agent_loop",
        "rollout.agent.agent_loop_config_path",
    }
)
OF_A_LOCAL_MODEL = OF_TOKENS | {
    "revision",
    "adapter_path",
    "device",
    "rollout.max_num_batched_tokens",
    "rollout.dtype",
    "rollout.enforce_eager",
    "rollout.images.max_per_prompt",
    "rollout.images.max_pixels",
    "rollout.images.allow_remote",
}
# Features of the backends that load the model themselves, in addition to those of parts.
SUPPORTED_LOCALLY = frozenset(
    "stream turn agent_loop score token_ids seed more_sampling update_weights pause"
    " continued_rows".split()
)


@dataclass(frozen=True)
class Mode:
    """A backend under one kind of config.

    name: for messages and the table of docs/backends.md. supports: names of
    `features.FEATURES`.
    reads: paths of config keys, of those that not every backend reads.
    """

    name: str
    supports: frozenset[str]
    reads: frozenset[str]


@dataclass(frozen=True)
class BackendDescription:
    """A backend, as `registry.BACKENDS` lists it.

    name: its `rollout.name`. launch: starts it, from a checked config; "module:function", because
    it is imported only then. modes: all of them; mode: that of a config, in place of which a start
    can only find a later one that reads the same keys. faults: yields what is wrong with the
    config's keys that only it reads. prepare: does what must be done before anything else is
    imported. restarting: a context in which one engine ends and another starts. remote: whether a
    server at `base_url` computes.
    """

    name: str
    launch: str
    modes: tuple[Mode, ...]
    mode: Callable[[Config], Mode]
    faults: Callable[[Config], Faults] = lambda config: iter(())
    prepare: Callable[[Config], None] = lambda config: None
    restarting: str = "contextlib:nullcontext"
    remote: bool = False

    def where(self, config: Config, backend: Backend) -> str:
        """Where a running backend computes, for the engine's repr."""
        if self.remote:
            return f"{self.name}, {config.base_url}"
        device = "cpu" if backend.on_cpu else "cuda"
        return f"{self.name}, {device}, weight version {backend.weight_version}"
