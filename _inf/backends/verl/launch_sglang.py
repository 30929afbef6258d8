"""Starts a backend from a checked config, step by step in the required order: verl and SGLang are
imported only after the environment is prepared."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from _inf.backends.model_info import eos_token_ids, limits_of, with_dtype, with_limits
from _inf.backends.verl import environment, has_adapters, kv_memory
from _inf.backends.verl.compiled_libraries import kernel_library
from _inf.backends.verl.environment import UNUSED_ON_CPU, Device
from _inf.backends.verl.server_arguments import CPU_ATTENTION, attention_backend, server_arguments
from _inf.backends.verl.support import (
    EXACT_ON_CPU,
    architecture,
    check_experts,
    check_lora,
    check_support,
    has_experts,
    longest_row,
)
from _inf.config import Config, check_engine_kwargs
from _inf.errors import ConfigError, EngineDeadError, InferenceError, at_fault
from _inf.models.resolve import model_folder
from _inf.runtime import quiet
from _inf.runtime.fork_server import ForkServer, SharedForkServer
from _inf.runtime.free_memory import free_bytes, give_back
from _inf.runtime.host import Host
from _inf.runtime.interpreter import interpreter_left_alone, quick_imports
from _inf.runtime.processes import Worker
from _inf.types import Limits, ModelInfo

if TYPE_CHECKING:
    from verl.workers.config import HFModelConfig

    from _inf.backends.verl.abilities import WholeVerlBackend
    from _inf.backends.verl.backend import VerlBackend
    from _inf.backends.verl.corrected_rollout import CorrectedRollout

TAKES = {
    "cpu": "about 15 seconds",
    "cuda": "about a minute, and some minutes the first time, to compile kernels",
}
# Starts share environment variables, upstream's module globals and the default process group.
_starting = threading.Lock()
FORKS = SharedForkServer("_inf.backends.verl.child.setup:import_all")
SCHEDULER = "sglang.srt.managers.scheduler:run_scheduler_process"
SETUP = "_inf.backends.verl.child.setup:set_up"


def launch(config: Config) -> VerlBackend:
    """Start an engine; takes about 15 seconds, nearly all of it for imports, and on a GPU longer:
    CUDA graphs are captured, and at the first start kernels are compiled.

    Raises `ConfigError` before anything is started, `EngineDeadError` with the log's end if a
    child process dies during the start, `InferenceError` in a process that cannot have an engine.
    """
    device = environment.prepare(config.device)
    with _starting, quiet.starting(config.model_name, TAKES[device]):
        folder = model_folder(config)
        host = Host(config.hang_timeout, sockets=True)
        if device == "cuda":
            from _inf.backends.verl.cuda import cause

            host.cause = cause
        try:
            with quiet.third_party():
                host.fork_server = _fork_server(config, device, host.log)
                backend = _backend(config, folder, device, host)
        except BaseException:
            host.stop()
            raise
        if host.fork_server is not None:
            FORKS.started()
        give_back()  # of the imports
        return backend


def _fork_server(config: Config, device: Device, log: Path) -> ForkServer | None:
    """Acquire the process from which engines are forked; None on a GPU, and on a rank that has no
    engine of its own."""
    rank, tp = int(os.environ["RANK"]), config.rollout.tensor_model_parallel_size
    return None if device == "cuda" or rank % tp else FORKS.acquire(log)


def _backend(config: Config, folder: Path, device: Device, host: Host) -> VerlBackend:
    """Import verl and SGLang, check what only they can check, start the engine, and check it."""
    with quick_imports(UNUSED_ON_CPU if device == "cpu" else ()):
        if device == "cuda":
            from _inf.backends.verl.cuda import leave_out_deep_gemm

            leave_out_deep_gemm()
        from _inf.backends.verl.corrected_rollout import HFModelConfig
        from _inf.backends.verl.engine import ServerArgs

    check_engine_kwargs(config, {field.name for field in dataclasses.fields(ServerArgs)})
    model_config = HFModelConfig(path=str(folder), trust_remote_code=config.trust_remote_code)
    hf_config = model_config.hf_config
    attention = attention_backend(config, device)
    vocabulary = getattr(hf_config, "text_config", hf_config).vocab_size
    limits = limits_of(config, vocabulary, longest_row(hf_config, device, attention))
    config = with_dtype(with_limits(config, limits), device == "cpu", hf_config)
    check_support(hf_config, device, limits.total, attention)
    check_experts(hf_config, config.rollout.engine_kwargs["sglang"])
    check_lora(hf_config, config.rollout.engine_kwargs["sglang"])
    rollout = _start(config, model_config, limits, device, host)
    eos = eos_token_ids(model_config.generation_config, model_config.tokenizer)
    has_engine = rollout._engine is not None  # another rank of its group may have it
    dtype = str(rollout.dtype).removeprefix("torch.") if has_engine else ""
    model = ModelInfo(model_config.tokenizer, eos, limits, folder, dtype)
    kind, _ = _kinds(config)
    backend = kind(rollout, host, model)
    rollout.ranks.agreed(lambda: _check_started(backend, config, folder))
    return backend


def _check_started(backend: VerlBackend, config: Config, folder: Path) -> None:
    rollout = backend.rollout
    if (engine := rollout._engine) is None:  # another rank of its group may have it
        return
    held = engine.scheduler_info["max_total_num_tokens"], engine.server_args.page_size
    kv_memory.check_held(held, rollout.server_arguments["context_length"], config)
    measured = architecture(rollout.model_config.hf_config) in EXACT_ON_CPU
    if not measured and config.rollout.load_format != "dummy":  # whose weights are not the folder's
        from _inf.backends.verl.start_check import check_unmeasured

        check_unmeasured(backend, folder)


def _kinds(config: Config) -> tuple[type[WholeVerlBackend], type[CorrectedRollout]]:
    """The classes of the backend and of its rollout."""
    if has_adapters(config):
        from _inf.backends.verl.adapters import AdaptingRollout, AdaptingVerlBackend

        return AdaptingVerlBackend, AdaptingRollout
    from _inf.backends.verl.abilities import WholeVerlBackend
    from _inf.backends.verl.corrected_rollout import CorrectedRollout

    return WholeVerlBackend, CorrectedRollout


def _start(
    config: Config, model_config: HFModelConfig, limits: Limits, device: Device, host: Host
) -> CorrectedRollout:
    from verl.utils.config import omega_conf_to_dataclass

    from _inf.backends.verl.corrected_rollout import RolloutConfig

    _, kind = _kinds(config)
    wanted = server_arguments(config, limits.total, device, quiet.engine_log_level())
    folder = Path(model_config.local_path)
    arguments = kv_memory.sized(wanted, config, model_config.hf_config, folder, free_bytes())
    _join_process_group(config)
    # Without tools and interactions: `_inf.conversation` runs the conversations.
    settings = config.rollout.model_dump(exclude={"multi_turn", "images"})
    rollout_config = omega_conf_to_dataclass(settings, RolloutConfig)
    scheduler = Worker(
        SCHEDULER,
        host.log,
        setup=SETUP,
        device=device,
        cpu_attention=attention_backend(config, device) == CPU_ATTENTION,
        pack_weights=device == "cpu" and config.pack_weights,
        kernel_library=kernel_library() if device == "cpu" and config.compiled_kernels else None,
        experts=has_experts(model_config.hf_config),
        trust_remote_code=config.trust_remote_code,
    )
    try:
        with interpreter_left_alone():
            return host.start(
                lambda: kind(rollout_config, model_config, host, scheduler, arguments)
            )
    except EngineDeadError as death:
        from _inf.backends.verl.child import weight_loading

        log = host.read_log()
        if reason := weight_loading.refusal(log):
            raise ConfigError.of("model_path", f"{config.model_name}: {reason}.") from death
        if reason := kv_memory.refused(log, config):
            raise ConfigError(reason) from death
        raise


@at_fault(key="rollout.tensor_model_parallel_size")
def _join_process_group(config: Config) -> None:
    """Join the process group that verl needs: torchrun's, or a `HashStore` without a port."""
    import torch.distributed as dist

    world, tp = int(os.environ["WORLD_SIZE"]), config.rollout.tensor_model_parallel_size
    dp = config.rollout.data_parallel_size
    if world != tp * dp:
        raise ConfigError(
            f"rollout.tensor_model_parallel_size: {tp} x data_parallel_size {dp} needs {tp * dp} "
            f"processes, and this one is {'alone' if world == 1 else f'one of {world}'}; "
            f"start it with torchrun --nproc-per-node {tp * dp}."
        )
    if dist.is_initialized():
        if dist.get_world_size() != world:
            raise InferenceError(
                f"torch.distributed is initialized with {dist.get_world_size()} processes, "
                f"WORLD_SIZE says {world}."
            )
    else:
        alone = {"store": dist.HashStore(), "rank": 0, "world_size": 1} if world == 1 else {}
        hook = sys.excepthook  # torch puts "[rank0]: " before every line of a traceback
        with quiet.descriptors():
            dist.init_process_group("gloo", **alone)
        sys.excepthook = hook
