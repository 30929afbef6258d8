"""What this backend supports, and which config keys it reads."""

from __future__ import annotations

from _inf.backends.description import OF_A_LOCAL_MODEL, SUPPORTED_LOCALLY, Mode

SGLANG_MODE = Mode(
    "sglang",
    supports=SUPPORTED_LOCALLY | {"sleep", "routed_experts"},
    reads=OF_A_LOCAL_MODEL
    | {
        "hang_timeout",
        "pack_weights",
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
