"""Whether the KV cache that a config asks for can be had, and the number that fits where it cannot.

It corrects that SGLang 0.5.9 (`srt/model_executor/model_runner_kv_cache_mixin.py`) lowers, in
silence, a pool that does not fit, so that longer rows are cut, and knows nothing of a container's
limit. The rule is its own: weights and pool get `gpu_memory_utilization` of what is free. It counts
less as free, later, so that what is refused before a start never fits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _inf.config import Config
from _inf.errors import ConfigError

POOL = "rollout.engine_kwargs.sglang.max_total_tokens"
SHARE = "rollout.gpu_memory_utilization"
FOUR_BYTES = ("float32", "float", "torch.float32")
# Models whose cache is not keys and values of every token in every layer: nothing is said of them.
UNLIKE = ("kv_lora_rank", "linear_num_key_heads", "attention_chunk_size", "quantization_config")
NO_ROOM = "Not enough memory. Please try to increase --mem-fraction-static"


def sized(
    arguments: dict[str, Any], config: Config, about: Any, folder: Path, free: int
) -> dict[str, Any]:
    """SGLang's server arguments with a pool that a CPU's memory, of which `free` bytes are, holds.

    about: the Transformers config of the model in `folder`. Raises `ConfigError` where what the
    config names does not fit, or not one whole row.
    """
    least, named = int(arguments["context_length"]), _named(config)
    if named is not None and named < least:
        raise ConfigError(f"{POOL}: must hold one row, {_row(config)}: {least}, not {named}")
    token = token_bytes(about, config)
    if arguments.get("device") != "cpu" or token is None:
        return arguments
    share, weights = config.rollout.gpu_memory_utilization, weight_bytes(folder, about, config)
    fits = max(0, int(free * share - weights) // token)
    if fits < (named or least):
        raise ConfigError(
            f"{_wanted(config, least)} would not fit into memory, at {token} bytes each; {fits} "
            f"would. {free / 1e9:.1f} GB are free, the engine may take {share} of them ({SHARE}), "
            f"and {weights / 1e9:.1f} GB are the weights'."
        )
    return arguments | {"max_total_tokens": min(arguments["max_total_tokens"], fits)}


def check_held(pool: tuple[int, int] | None, least: int, config: Config) -> None:
    """`pool`: the tokens that a started engine found room for, and a page's; None: not known."""
    if pool is None:
        return
    held, page = pool
    if held < least or held + page <= (_named(config) or 0):
        raise ConfigError(
            f"{_wanted(config, least)} did not fit into memory; {held} would. Free some, or raise "
            f"{SHARE} ({config.rollout.gpu_memory_utilization})."
        )


def refused(log: str, config: Config) -> str | None:
    """What an engine that died while it started says of memory in its log, in one sentence."""
    if NO_ROOM not in log:
        return None
    return (
        f"{SHARE}: at {config.rollout.gpu_memory_utilization} of the free memory nothing is left "
        "beside the weights: 0 tokens of KV cache fit; raise it, or free some memory."
    )


def _named(config: Config) -> int | None:
    named: int | None = config.rollout.engine_kwargs["sglang"].get("max_total_tokens")
    return named


def _row(config: Config) -> str:
    rollout = config.rollout
    total = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    return (
        f"max_model_len {total} (prompt_length {rollout.prompt_length}, "
        f"response_length {rollout.response_length})"
    )


def _wanted(config: Config, least: int) -> str:
    if named := _named(config):
        return f"{POOL}: {named} tokens of KV cache"
    return f"rollout.max_model_len: the KV cache of one row, {_row(config)}, {least} tokens,"


def token_bytes(about: Any, config: Config) -> int | None:
    """Of KV cache, a token and rank; None for a model of which this cannot be said."""
    text, rollout = getattr(about, "text_config", about), config.rollout
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    stored = rollout.engine_kwargs["sglang"].get("kv_cache_dtype") or "auto"
    if kinds != {"full_attention"} or stored != "auto":
        return None
    if any(getattr(each, name, None) for each in (about, text) for name in UNLIKE):
        return None
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    of_a_rank = max(1, kv_heads // rollout.tensor_model_parallel_size)
    width = getattr(text, "head_dim", None) or text.hidden_size // heads
    return int(2 * of_a_rank * width * text.num_hidden_layers * _item_bytes(config))


def _item_bytes(config: Config) -> int:
    return 4 if config.rollout.dtype in FOUR_BYTES else 2  # what SGLang's auto becomes


def weight_bytes(folder: Path, about: Any, config: Config) -> int:
    """Of the model in the engine's dtype, a rank."""
    stored = 4 if str(getattr(about, "dtype", None)) in FOUR_BYTES else 2
    total = file_bytes(folder) * _item_bytes(config) // stored
    return int(total // config.rollout.tensor_model_parallel_size)


def file_bytes(folder: Path) -> int:
    """Of a model's weights on the disk."""
    files = [*folder.glob("*.safetensors")] or [*folder.glob("*.bin")]
    return sum(file.stat().st_size for file in files)
