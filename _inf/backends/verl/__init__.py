"""The backend on verl 0.6.1's `SGLangRollout` and sglang 0.5.9, in the caller's process.

Only this folder depends on verl or SGLang, so a new version of either changes no other folder.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from _inf.backends.description import (
    OF_A_LOCAL_MODEL,
    SUPPORTED_LOCALLY,
    BackendDescription,
    Faults,
    Mode,
)
from _inf.parts.found import features
from _inf.runtime.extras import without_verl

if TYPE_CHECKING:
    from _inf.config import Config

SGLANG_MODE = Mode(
    "sglang",
    supports=SUPPORTED_LOCALLY | {"sleep"} | (features("sglang") - {"adapters"}),
    reads=OF_A_LOCAL_MODEL
    | {
        "hang_timeout",
        "pack_weights",
        "compiled_kernels",
        "rollout.calculate_log_probs",
        "rollout.load_format",
        "rollout.gpu_memory_utilization",
        "rollout.free_cache_engine",
        "rollout.cudagraph_capture_sizes",
        "rollout.enable_chunked_prefill",
        "rollout.enable_prefix_caching",
        "rollout.tensor_model_parallel_size",
        "rollout.data_parallel_size",
        "rollout.expert_parallel_size",
        "rollout.engine_kwargs.sglang",
        "rollout.update_weights_bucket_megabytes",
    },
)

WITH_ADAPTERS = dataclasses.replace(
    SGLANG_MODE,
    name="sglang with enable_lora",  # SGLang's own argument, in `engine_kwargs`
    supports=SGLANG_MODE.supports | {"adapters"},
)


def has_adapters(config: Config) -> bool:
    return bool(config.rollout.engine_kwargs["sglang"].get("enable_lora"))


def _prepare(config: Config) -> None:
    from _inf.backends.verl.environment import check_pins, prepare
    from _inf.runtime.forks import check_start

    check_start()
    check_pins()
    prepare(config.device)


def _faults(config: Config) -> Faults:
    """Refuse all where verl is not installed; a cache with tensor parallelism, because only the
    first rank's would have the turns of conversations, so the ranks would not ask the engine for
    the same rows; and adapters there, whose shares were never computed."""
    if fault := without_verl("rollout.name"):
        yield "rollout.name", f"{fault}, or use rollout.name: hf"
    size = config.rollout.tensor_model_parallel_size
    if config.generation_cache and size > 1:
        yield "generation_cache", f"must be 0 with rollout.tensor_model_parallel_size {size}"
    if has_adapters(config) and size > 1:
        key = "rollout.engine_kwargs.sglang.enable_lora"
        yield key, f"must be false with rollout.tensor_model_parallel_size {size}"


SGLANG = BackendDescription(
    name="sglang",
    launch="_inf.backends.verl.launch_sglang:launch",
    modes=(SGLANG_MODE, WITH_ADAPTERS),
    mode=lambda config: WITH_ADAPTERS if has_adapters(config) else SGLANG_MODE,
    faults=_faults,
    prepare=_prepare,
    restarting="_inf.backends.verl.launch_sglang:FORKS.kept",
)
