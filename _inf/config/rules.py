"""What the models cannot say: keys that are fixed or ignored, and who owns what.

Keys of `FIXED` and `IGNORED` stand under `rollout`; a section's name is all its keys.
A key there is accepted at its default (and at `ALSO_NEUTRAL`), so that verl's own files load, and
refused with the reason at any other value. Read against verl 0.6.1's
`verl/workers/rollout/sglang_rollout/sglang_rollout.py` and SGLang 0.5.9's `ServerArgs`.
"""

from __future__ import annotations

from collections.abc import Mapping

# Keys with one possible value, and why.
FIXED: Mapping[str, str] = {
    "name": "SGLang is the only engine here",
    "mode": "verl's sync mode is not offered (upstream removed it)",
    "skip_tokenizer_init": "the engine takes and gives token ids",
    "pipeline_model_parallel_size": "verl's rollout has no pipeline parallelism",
    "multi_turn.use_inference_chat_template": "the ids that were sampled are never rendered again",
    "multi_turn.tokenization_sanity_check_mode": "no turn is rendered again, so none can differ",
}

# What SGLangRollout, as this library runs it, never reads.
IGNORED_SECTIONS: Mapping[str, str] = {
    "agent": "verl's agent loops do not run here",
    "trace": "verl traces agent loops only, and none runs here",
    "server": "the engine runs in this process's own children, not behind HTTP",
    "prometheus": "there is no HTTP server to scrape",
    "profiler": "verl's trainer starts the profiler, not the rollout",
}
IGNORED: Mapping[str, str] = {
    **IGNORED_SECTIONS,
    "val_kwargs.n": "verl's trainer reads it, not the rollout",
    "val_kwargs.do_sample": "verl's trainer reads it, not the rollout",
    "log_prob_micro_batch_size": "verl's actor reads it, not the rollout",
    "log_prob_micro_batch_size_per_gpu": "verl's actor reads it, not the rollout",
    "log_prob_use_dynamic_bsz": "verl's actor reads it, not the rollout",
    "log_prob_max_token_len_per_gpu": "verl's actor reads it, not the rollout",
    "disable_log_stats": "vLLM reads it, SGLang does not",
    "multi_stage_wake_up": "verl's sharding manager reads it, not the rollout",
    "skip_rollout": "verl's trainer reads it, not the rollout",
    "skip_dump_dir": "verl's trainer reads it, not the rollout",
    "layered_summon": "vLLM's rollout reads it, SGLang's does not",
    "layer_name_map": "verl's Megatron workers read it, not the rollout",
    "sglang_engine_mode": "the engine is always local to this process",
    "multi_turn.num_repeat_rollouts": "nothing in verl's rollouts reads it",
    "limit_images": "vLLM reads it, SGLang does not",
}

# Beside the default: what verl's own files say, which changes nothing either.
ALSO_NEUTRAL: Mapping[str, object] = {
    "val_kwargs.do_sample": False,
    "multi_turn.tokenization_sanity_check_mode": "strict",
}

# SGLang arguments that a config key owns...
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
# ... and those that the engine room sets for itself.
OWNED_BY_ENGINE: frozenset[str] = frozenset(
    "host port nccl_port dist_init_addr nnodes node_rank base_gpu_id gpu_id_step dist_timeout"
    " log_level tokenizer_path disable_overlap_schedule enable_custom_logit_processor"
    " weight_version custom_sigquit_handler grammar_backend".split()
)

# Keys of the older, flat form whose name is not the new one's last word.
RENAMED: Mapping[str, str] = {
    "max_prompt_length": "rollout.prompt_length",
    "max_response_length": "rollout.response_length",
    "max_new_tokens": "rollout.response_length",
    "max_tokens": "rollout.response_length",
    "rollout_mode": "rollout.mode",
    "tensor_parallel_size": "rollout.tensor_model_parallel_size",
    "attention_backend": "rollout.engine_kwargs.sglang.attention_backend",
}
