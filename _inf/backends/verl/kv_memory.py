"""Checks that the KV cache of a config fits into memory.

SGLang 0.5.9 (`srt/model_executor/model_runner_kv_cache_mixin.py`) silently shrinks a pool that does
not fit, so that longer rows are cut, and ignores a container's memory limit. The rule is SGLang's:
weights and pool get `gpu_memory_utilization` of the free memory. SGLang measures less free memory,
because it measures later, so a config refused here would never fit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from _inf.backends.model_info import item_bytes, weight_bytes
from _inf.config import Config
from _inf.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

POOL = "rollout.engine_kwargs.sglang.max_total_tokens"
SHARE = "rollout.gpu_memory_utilization"
LENGTH = "rollout.max_model_len"
# Models whose cache is not keys and values of every token in every layer: they are not checked.
UNLIKE = ("kv_lora_rank", "linear_num_key_heads", "attention_chunk_size", "quantization_config")
NO_MEMORY = "Not enough memory. Please try to increase --mem-fraction-static"


def sized(
    arguments: dict[str, Any], config: Config, hf_config: PretrainedConfig, folder: Path, free: int
) -> dict[str, Any]:
    """Return SGLang's server arguments with a KV pool that fits into a CPU's `free` bytes. Raises
    `ConfigError` if the pool in the config, or one whole row, does not fit."""
    row, pool = int(arguments["context_length"]), _pool(config)
    if pool is not None and pool < row:
        raise ConfigError.of(POOL, f"must hold one row ({LENGTH}): {row} tokens, not {pool}")
    token = token_bytes(hf_config, config)
    if arguments.get("device") != "cpu" or token is None:
        return arguments
    share = config.rollout.gpu_memory_utilization
    weights = rank_weights(folder, hf_config, config) + packed_bytes(hf_config, config)
    fits = max(0, int(free * share - weights) // token)
    if fits < (pool or row):
        raise ConfigError(
            f"{_what_was_asked(config, row)} would not fit into memory, at {token} bytes each; "
            f"{fits} tokens would. {free / 1e9:.1f} GB are free, the engine may take {share} of "
            f"them ({SHARE}), and the weights take {weights / 1e9:.1f} GB in "
            f"{config.rollout.dtype} (rollout.dtype)."
        )
    return arguments | {"max_total_tokens": min(arguments["max_total_tokens"], fits)}


def check_held(held: tuple[int, int], row: int, config: Config) -> None:
    """Raise if a started engine has less KV cache than the config asks for. `held`: tokens of its
    cache, and of a page. `row`: tokens of the longest row."""
    tokens, page = held
    if tokens < row or tokens + page <= (_pool(config) or 0):
        raise ConfigError(
            f"{_what_was_asked(config, row)} did not fit into memory; {tokens} tokens would. Free "
            f"some memory, or raise {SHARE} ({config.rollout.gpu_memory_utilization})."
        )


def refused(log: str, config: Config) -> str | None:
    """One sentence if the log of an engine that died at its start reports too little memory."""
    if NO_MEMORY not in log:
        return None
    return (
        f"{SHARE}: at {config.rollout.gpu_memory_utilization} of the free memory nothing is left "
        "after the weights: 0 tokens of KV cache fit; raise it, or free some memory."
    )


def _pool(config: Config) -> int | None:
    pool: int | None = config.rollout.engine_kwargs["sglang"].get("max_total_tokens")
    return pool


def _what_was_asked(config: Config, row: int) -> str:
    if pool := _pool(config):
        return f"{POOL}: {pool} tokens of KV cache"
    return f"{LENGTH} (or prompt_length + response_length): one row's KV cache of {row} tokens"


def token_bytes(hf_config: PretrainedConfig, config: Config) -> int | None:
    """Bytes of KV cache per token on one rank; None for a model whose cache is not known."""
    text, rollout = getattr(hf_config, "text_config", hf_config), config.rollout
    layers = set(getattr(text, "layer_types", None) or ["full_attention"])
    stored = rollout.engine_kwargs["sglang"].get("kv_cache_dtype") or "auto"
    unlike = any(getattr(part, name, None) for part in (hf_config, text) for name in UNLIKE)
    if unlike or layers != {"full_attention"} or stored != "auto":
        return None
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    rank_heads = max(1, kv_heads // rollout.tensor_model_parallel_size)
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return int(2 * rank_heads * width * text.num_hidden_layers * item_bytes(rollout.dtype))


def rank_weights(folder: Path, hf_config: PretrainedConfig, config: Config) -> int:
    """Bytes of the model's weights on one rank, in the engine's dtype."""
    total = weight_bytes(folder, hf_config, config.rollout.dtype)
    return total // config.rollout.tensor_model_parallel_size


def packed_bytes(hf_config: PretrainedConfig, config: Config) -> int:
    """Bytes on one rank of the head's packed weights, which is there in both forms."""
    text, rollout = getattr(hf_config, "text_config", hf_config), config.rollout
    head = text.vocab_size * text.hidden_size * item_bytes(rollout.dtype)
    return head // rollout.tensor_model_parallel_size if config.pack_weights else 0
