"""The backend on verl 0.6.1's `SGLangRollout` and sglang 0.5.9, in the caller's process.

Only this folder depends on verl or SGLang, so a new version of either changes no other folder.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from _inf.backends.description import BackendDescription, Faults
from _inf.backends.verl.modes import SGLANG_MODE

if TYPE_CHECKING:
    from _inf.backends.base import Backend
    from _inf.config import Config


def _prepare(config: Config) -> None:
    from _inf.backends.verl.environment import check_pins, prepare
    from _inf.runtime.fork import check_start

    check_start()
    check_pins()
    prepare(config.device)


def _launch(config: Config) -> Backend:
    from _inf.backends.verl.launch_sglang import launch

    return launch(config)


def _restarting() -> AbstractContextManager[None]:
    from _inf.backends.verl.launch_sglang import fork_server_kept

    return fork_server_kept()


def _faults(config: Config) -> Faults:
    """Refuse a cache beside tensor parallelism: the turns of conversations are in that of a group's
    first rank only, so the ranks would not ask the engine for the same rows."""
    size = config.rollout.tensor_model_parallel_size
    if config.generation_cache and size > 1:
        yield "generation_cache", f"must be 0 beside rollout.tensor_model_parallel_size {size}"


SGLANG = BackendDescription(
    name="sglang",
    launch=_launch,
    modes=(SGLANG_MODE,),
    faults=_faults,
    prepare=_prepare,
    restarting=_restarting,
)
