"""What this backend supports, and which config keys it reads."""

from __future__ import annotations

from _inf.backends.base import FEATURES
from _inf.backends.description import OF_A_LOCAL_MODEL, Mode

SGLANG_MODE = Mode(
    "sglang",
    supports=frozenset(FEATURES) - {"logits", "beams"},
    reads=OF_A_LOCAL_MODEL.union(
        """
        hang_timeout pack_weights rollout.calculate_log_probs rollout.cudagraph_capture_sizes
        rollout.data_parallel_size rollout.enable_chunked_prefill rollout.enable_prefix_caching
        rollout.engine_kwargs.sglang rollout.expert_parallel_size rollout.free_cache_engine
        rollout.gpu_memory_utilization rollout.load_format rollout.tensor_model_parallel_size
        rollout.update_weights_bucket_megabytes
        """.split()
    ),
)
