"""Builds SGLang's server arguments from our config, where verl's rollout drops or misreads it.

verl 0.6.1 (`sglang_rollout.py`, `_init_inference_engine`) builds a fixed dict: of `engine_kwargs`
only `attention_backend` arrives, and none of `enforce_eager`, `enable_chunked_prefill`,
`enable_prefix_caching`, `max_num_batched_tokens`, `max_model_len`, `expert_parallel_size`. The
arguments returned here override that dict (`_inf.backends.verl.engine.Engine`).
"""

from __future__ import annotations

import os

from _inf.backends.model_info import FLOAT32
from _inf.backends.verl.environment import Device, free_ports
from _inf.config import Config
from _inf.errors import ConfigError

# SGLang refuses prompt + max_new_tokens >= context_length, and a prompt that leaves less than seven
# (0.5.9, `tokenizer_manager._validate_one_request`, `tp_worker.max_req_input_len`).
CONTEXT_SLACK = 7
# The KV pool of a CPU engine, in tokens; on a GPU `gpu_memory_utilization` sizes it.
CPU_KV_ROWS = 4
CPU_KV_TOKENS = 16_384
NEVER = 1e9
ATTENTION, TRITON = "attention_backend", "triton"
HOPPER = 9  # the compute capability of H100 and H200, where FlashAttention 3 is SGLang's choice
# These have kernels for half precision only.
HALF_PRECISION = "fa3 fa4 flashinfer flashmla cutlass_mla trtllm_mha trtllm_mla".split()
# SGLang captures CUDA graphs for 8, 24, 32 or 256 rows, by the GPU's size (`server_args.py`), and
# runs more rows without one. It estimates 2 MB for each row; here they get a quarter of what
# weights and KV cache leave.
GRAPH_BYTES_A_ROW, GRAPH_SHARE, LEAST_GRAPH_ROWS, MOST_GRAPH_ROWS = 2 * 2**20, 0.25, 8, 1024
GRAPH_STEP = 32  # at most, between two sizes: where it ends above the rows, these get a graph too
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # PyTorch 2.9 has both names
AMX = "intel_amx"
CPU_ATTENTION = "inf_cpu"  # `_inf.backends.verl.child.attention`
ENABLE, MAX_RANK, SLOTS = "enable_lora", "max_lora_rank", "max_loras_per_batch"
OWN = "rollout.engine_kwargs.sglang."
SERIAL = "disable_overlap_schedule"
# Where it is the default. A CPU has nothing to overlap, and computes a step too many for each row.
SERIAL_DEVICES: set[Device] = {"cpu"}
CAPTURE_EXPERTS = "enable_return_routed_experts"
# What adapters may change.
TARGETS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "o_proj", "down_proj")
LORA_BACKEND, CPU_LORA = "lora_backend", "torch_native"  # in place of it `child.lora` has its own
DEFAULT_RANK, DEFAULT_SLOTS = 16, 8  # vLLM's, SGLang's


def server_arguments(
    config: Config, max_model_len: int, device: Device, log_level: str
) -> dict[str, object]:
    """Keyword arguments of `sglang.srt.server_args.ServerArgs` that replace verl's."""
    arguments = _on_any_device(config, max_model_len, log_level) | _lora(config, device)
    arguments |= _schedule(config, device)
    arguments |= _on_a_cpu(config, max_model_len) if device == "cpu" else _on_a_gpu(config)
    asked = config.rollout.engine_kwargs["sglang"]
    return arguments | {
        n: value for n, value in asked.items() if value not in (None, CPU_ATTENTION)
    }


def _on_any_device(config: Config, max_model_len: int, log_level: str) -> dict[str, object]:
    rollout = config.rollout
    port, nccl_port = free_ports(2)  # verl gives every engine of a rank the same ones
    arguments: dict[str, object] = {
        "host": "127.0.0.1",
        "port": port,
        "nccl_port": nccl_port,
        "log_level": log_level,
        "weight_version": "0",
        "context_length": max_model_len + CONTEXT_SLACK,
        "max_prefill_tokens": rollout.max_num_batched_tokens,
        "chunked_prefill_size": -1,
        "disable_radix_cache": not rollout.enable_prefix_caching,
        "disable_cuda_graph": rollout.enforce_eager,
        "ep_size": rollout.expert_parallel_size,
        # verl sets fa3, which only Hopper GPUs have.
        ATTENTION: None,
        "mm_attention_backend": None,
        # `_inf.parts.grammars` has checked every grammar with the same library.
        "grammar_backend": "llguidance",
        # If any whitespace is allowed, a small model writes blank lines until max_tokens.
        "constrained_json_disable_any_whitespace": True,
        # Otherwise Qwen3-VL stretches its table of positions in another way than Transformers.
        "enable_precise_embedding_interpolation": True,
        # Otherwise an idle scheduler burns a core.
        "sleep_on_idle": True,
        # The default of 300 s kills a slow scheduler; `hang_timeout` is the only limit.
        "watchdog_timeout": NEVER,
        # On a CPU its LD_PRELOAD of libcudart would stop the children from starting.
        "enable_memory_saver": False,
    }
    if rollout.enable_chunked_prefill:
        arguments["chunked_prefill_size"] = rollout.max_num_batched_tokens
    if rollout.cudagraph_capture_sizes is not None:
        arguments["cuda_graph_bs"] = list(rollout.cudagraph_capture_sizes)
    return arguments


def _on_a_cpu(config: Config, max_model_len: int) -> dict[str, object]:
    asked = config.rollout.engine_kwargs["sglang"]
    if asked.get("enable_torch_compile") and asked.get(ATTENTION) != AMX:
        raise ConfigError.of(  # 0.5.9, `model_executor/cpu_graph_runner.py`
            f"{OWN}enable_torch_compile",
            "on a CPU SGLang compiles a model "
            f"only for {ATTENTION} {AMX}, on a processor that has AMX; leave it out.",
        )
    return {
        "device": "cpu",
        # `child.attention` registers its own under this name.
        ATTENTION: "torch_native",
        "sampling_backend": "pytorch",
        "max_total_tokens": max(CPU_KV_TOKENS, CPU_KV_ROWS * max_model_len),
    }


def _on_a_gpu(config: Config) -> dict[str, object]:
    """The arguments for the GPU of this process; `ConfigError` for keys of a CPU, an attention
    backend that does not compute in the config's dtype, or an allocator beside which sleep frees
    nothing."""
    import torch

    on = {"pack_weights": config.pack_weights, "compiled_kernels": config.compiled_kernels}
    for key, value in on.items():
        if not value:
            raise ConfigError.of(key, "it works on a CPU only; leave it out on a GPU")
    rollout = config.rollout
    float32 = rollout.dtype in FLOAT32
    backend = rollout.engine_kwargs["sglang"].get(ATTENTION)
    if float32 and backend in HALF_PRECISION:
        raise ConfigError.of(
            f"{OWN}{ATTENTION}",
            f"{backend} computes in half precision only, "
            f"and rollout.dtype is {rollout.dtype}; leave it out, or use {TRITON}.",
        )
    for name in ALLOCATOR:
        asks = "expandable_segments:true" in os.environ.get(name, "").lower().replace(" ", "")
        if rollout.free_cache_engine and asks:
            raise ConfigError.of(  # torch_memory_saver 0.0.9, `entrypoint.py`
                "rollout.free_cache_engine",
                f"{name} asks for expandable_segments, whose memory cannot be released; unset it, "
                "or set free_cache_engine to false.",
            )
    chosen: dict[str, object] = {
        "enable_memory_saver": rollout.free_cache_engine,
        # Otherwise the weights are garbage after a sleep, until all of them are updated.
        "enable_weights_cpu_backup": rollout.free_cache_engine,
    }
    # Otherwise SGLang takes FlashAttention 3 on Hopper also in float32, and on other GPUs
    # flashinfer, whose kernels need the toolkit.
    if float32 or torch.cuda.get_device_capability()[0] != HOPPER:
        chosen[ATTENTION] = TRITON
    left = torch.cuda.get_device_properties(0).total_memory * (1 - rollout.gpu_memory_utilization)
    fits = max(LEAST_GRAPH_ROWS, int(left * GRAPH_SHARE / GRAPH_BYTES_A_ROW))
    wanted = min(rollout.max_num_seqs + GRAPH_STEP, MOST_GRAPH_ROWS)
    return chosen | {"cuda_graph_max_bs": min(wanted, fits)}


def _schedule(config: Config, device: Device) -> dict[str, object]:
    """Which schedule: `child.overlap` makes the overlapped one exact, but for SGLang's record of
    experts."""
    asked = config.rollout.engine_kwargs["sglang"]
    captures = bool(asked.get(CAPTURE_EXPERTS))
    if captures and asked.get(SERIAL) is False:
        raise ConfigError.of(  # 0.5.9, `layers/moe/routed_experts_capturer.py`
            OWN + SERIAL, f"{CAPTURE_EXPERTS} needs it to be true; leave it out."
        )
    return {SERIAL: captures or device in SERIAL_DEVICES}


def _lora(config: Config, device: Device) -> dict[str, object]:
    """SGLang 0.5.9 dies of an adapter that is not one of `TARGETS`, and, if one that waits for the
    rest of its prompt is not among `max_loras_per_batch`, of that; so all that are loaded are."""
    asked = config.rollout.engine_kwargs["sglang"]
    free = {ENABLE, MAX_RANK, SLOTS} | ({LORA_BACKEND} if device == "cuda" else set())
    for name, value in asked.items():
        if "lora" in name and name not in free and value is not None:
            raise ConfigError.of(OWN + name, "leave it out; engine.load_adapter() loads adapters.")
    if not asked.get(ENABLE):
        return {}
    ranks = {MAX_RANK: DEFAULT_RANK, SLOTS: DEFAULT_SLOTS, "lora_target_modules": list(TARGETS)}
    return ranks | ({LORA_BACKEND: CPU_LORA} if device == "cpu" else {})


def attention_backend(config: Config, device: Device) -> str | None:
    """The config's attention backend, or the best for the device; None: SGLang chooses."""
    asked: str | None = config.rollout.engine_kwargs["sglang"].get(ATTENTION)
    return asked or (CPU_ATTENTION if device == "cpu" else None)
