"""Tables of keys that would have no effect, so that none is ignored silently.

They hold verl's keys with one allowed value, and SGLang arguments that are set elsewhere, as read
in verl 0.6.1's `verl/workers/rollout/sglang_rollout/sglang_rollout.py` and SGLang 0.5.9's
`ServerArgs`.
"""

from __future__ import annotations

from collections.abc import Mapping

_AGENT = "agent loops run in this process, without verl's workers"
_SERVER = "the engine runs in this process's own children, not behind HTTP"
_TRAINER = "verl's trainer reads it, not the rollout"
_ACTOR = "verl's actor reads it, not the rollout"
_VLLM = "vLLM reads it, SGLang does not"
_RENDERED = "the ids that were sampled are never rendered again"

# Keys under `rollout` that are accepted with this value, so that verl's own files load, and refused
# with any other, for the reason given. A tuple holds several values. `{}` is a section that may
# have only the keys listed above it, or `enable: false`.
ONE_VALUE: Mapping[str, tuple[object, str]] = {
    "mode": ("async", "verl's sync mode is not offered; set it to async"),
    "engine_kwargs.vllm": ({}, "vLLM is not an engine here"),
    "skip_tokenizer_init": (True, "the engine works on token ids"),
    "pipeline_model_parallel_size": (1, "verl's rollout has no pipeline parallelism"),
    # Keys that SGLangRollout, as used by this library, never reads.
    "agent.num_workers": (8, _AGENT),
    "agent.custom_async_server.path": (None, _AGENT),
    "agent.custom_async_server.name": (None, _AGENT),
    "agent.custom_async_server": ({}, _AGENT),
    "trace.backend": (None, _AGENT),
    "trace.token2text": (False, _AGENT),
    "trace": ({}, _AGENT),
    "server.timeout": (60.0, _SERVER),
    "server.max_attempts": (3, _SERVER),
    "server.retry_delay": (2.0, _SERVER),
    "server.max_connections": (1000, _SERVER),
    "server.max_start_wait_time": (300.0, _SERVER),
    "server": ({}, _SERVER),
    "prometheus": ({}, _SERVER),
    "profiler": ({}, "verl's trainer starts the profiler, not the rollout"),
    "val_kwargs.n": (1, _TRAINER),
    "val_kwargs.do_sample": ((True, False), _TRAINER),
    "skip_rollout": (False, _TRAINER),
    "skip_dump_dir": ("/tmp/rollout_dump", _TRAINER),
    "log_prob_micro_batch_size": (None, _ACTOR),
    "log_prob_micro_batch_size_per_gpu": (None, _ACTOR),
    "log_prob_use_dynamic_bsz": (False, _ACTOR),
    "log_prob_max_token_len_per_gpu": (16384, _ACTOR),
    "disable_log_stats": (True, _VLLM),
    "limit_images": (None, _VLLM),
    "layered_summon": (False, _VLLM),
    "layer_name_map": ({}, "verl's Megatron workers read it, not the rollout"),
    "multi_stage_wake_up": (False, "verl's sharding manager reads it, not the rollout"),
    "sglang_engine_mode": ("local", "the engine is always local to this process"),
    "multi_turn.use_inference_chat_template": (False, _RENDERED),
    "multi_turn.tokenization_sanity_check_mode": (("disable", "strict"), _RENDERED),
    "multi_turn.num_repeat_rollouts": (None, "nothing in verl's rollouts reads it"),
}

# SGLang arguments, with the config key that sets each.
OWNED_BY_KEY: Mapping[str, str] = {
    "model_path": "model_path",
    "trust_remote_code": "trust_remote_code",
    "device": "device",
    "dtype": "rollout.dtype",
    "load_format": "rollout.load_format",
    "mem_fraction_static": "rollout.gpu_memory_utilization",
    "tp_size": "rollout.tensor_model_parallel_size",
    "dp_size": "rollout.data_parallel_size",
    "ep_size": "rollout.expert_parallel_size",
    "pp_size": "rollout.pipeline_model_parallel_size",
    "max_running_requests": "rollout.max_num_seqs",
    "max_prefill_tokens": "rollout.max_num_batched_tokens",
    "chunked_prefill_size": "rollout.max_num_batched_tokens and rollout.enable_chunked_prefill",
    "disable_radix_cache": "rollout.enable_prefix_caching",
    "disable_cuda_graph": "rollout.enforce_eager",
    "cuda_graph_bs": "rollout.cudagraph_capture_sizes",
    "context_length": "rollout.max_model_len",
    "skip_tokenizer_init": "rollout.skip_tokenizer_init",
    "enable_memory_saver": "rollout.free_cache_engine",
    "watchdog_timeout": "hang_timeout",
}
# SGLang arguments that this library sets itself.
OWNED_BY_ENGINE: frozenset[str] = frozenset(
    "host port nccl_port dist_init_addr nnodes node_rank base_gpu_id gpu_id_step dist_timeout"
    " log_level tokenizer_path enable_custom_logit_processor"
    " weight_version custom_sigquit_handler grammar_backend".split()
)

# Keys of the older, flat form whose name has changed, with their present path.
RENAMED: Mapping[str, str] = {
    "max_prompt_length": "rollout.prompt_length",
    "max_response_length": "rollout.response_length",
    "max_new_tokens": "rollout.response_length",
    "max_tokens": "rollout.response_length",
    "rollout_mode": "rollout.mode",
    "sglang_rollout_mode": "rollout.sglang_engine_mode",  # its name in `sglang_rollout.py`
    "tensor_parallel_size": "rollout.tensor_model_parallel_size",
    "attention_backend": "rollout.engine_kwargs.sglang.attention_backend",
}
