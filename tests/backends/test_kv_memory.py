"""Which KV cache fits into memory, and the message with the number if it does not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.backends.verl import kv_memory
from _inf.config import Config, load_config
from _inf.runtime.free_memory import free_bytes
from inf import ConfigError
from tests.support.refusals import refused

pytestmark = pytest.mark.verl

MODEL = SimpleNamespace(
    dtype="float32",
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    hidden_size=576,
    vocab_size=1000,
)
HEAD = 1000 * 576 * 4  # is in memory twice, packed and plain
WEIGHTS = 1_000_000 + HEAD
TOKEN = 2 * 3 * 64 * 30 * 4  # keys and values, heads, width, layers, float32
ROW, DEFAULT = 514, 16_384
POOL = "rollout.engine_kwargs.sglang.max_total_tokens"


def config(pool: int | None = None, **rollout: Any) -> Config:
    lengths = {"prompt_length": 256, "response_length": 256, "dtype": "float32"}
    sglang = {"sglang": {"max_total_tokens": pool}}
    return load_config({"rollout": {**lengths, "engine_kwargs": sglang, **rollout}}, {})


def sized(config: Config, folder: Path, free: int, device: str = "cpu", pool: int = DEFAULT) -> int:
    arguments = {"device": device, "context_length": ROW, "max_total_tokens": pool}
    sized_arguments = kv_memory.sized(arguments, config, MODEL, folder, free)
    assert sized_arguments.keys() == arguments.keys()
    return int(sized_arguments["max_total_tokens"])


@pytest.fixture
def folder(tmp_path):
    """A model with weights of 1,000,000 bytes."""
    (tmp_path / "model.safetensors").write_bytes(bytes(600_000))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(400_000))
    (tmp_path / "model.bin").write_bytes(bytes(1_000))  # nobody reads it beside the others
    return tmp_path


@pytest.mark.parametrize(
    ("rollout", "token", "weights"),
    [
        ({}, TOKEN, WEIGHTS),
        ({"dtype": "bfloat16"}, TOKEN // 2, WEIGHTS // 2),
        ({"tensor_model_parallel_size": 4}, TOKEN // 3, WEIGHTS // 4),  # a head a rank, at least
        ({"engine_kwargs": {"sglang": {"kv_cache_dtype": "fp8_e5m2"}}}, None, WEIGHTS),
    ],
)
def test_bytes_of_a_token_and_of_the_weights_with_the_packed_head(rollout, token, weights, folder):
    own = config(**rollout)
    assert kv_memory.token_bytes(MODEL, own) == token
    packed = kv_memory.packed_bytes(MODEL, own)
    assert kv_memory.rank_weights(folder, MODEL, own) + packed == weights
    assert kv_memory.packed_bytes(MODEL, load_config({"pack_weights": False}, {})) == 0


@pytest.mark.parametrize(
    "unlike",
    [{"kv_lora_rank": 512}, {"layer_types": ["linear_attention", "full_attention"]}],
)
def test_models_with_another_cache_are_not_checked(unlike, folder):
    model = SimpleNamespace(**vars(MODEL), **unlike)
    arguments = {"device": "cpu", "context_length": ROW, "max_total_tokens": DEFAULT}
    assert kv_memory.sized(arguments, config(), model, folder, 0) == arguments


def test_pool_that_fits_stays_and_the_default_one_shrinks_to_what_does(folder):
    free = 2 * (DEFAULT * TOKEN + WEIGHTS)  # of which the engine may use half
    assert sized(config(), folder, free) == DEFAULT
    assert sized(config(), folder, free - 2 * TOKEN) == DEFAULT - 1
    assert sized(config(gpu_memory_utilization=0.25), folder, 2 * free) == DEFAULT
    assert sized(config(), folder, 0, device="cuda") == DEFAULT  # SGLang measures it there


def test_number_that_a_refusal_names_fits_and_lengths_where_not_one_row_does(folder):
    free = 2 * (2000 * TOKEN + WEIGHTS)
    said = (
        f"9000 tokens .* at {TOKEN} bytes each; 2000 tokens would. 0.2 GB are free, .* 0.5 of them"
    )
    with refused(ConfigError, f"^{POOL}: {said}"):
        sized(config(9000), folder, free, pool=9000)
    assert sized(config(2000), folder, free, pool=2000) == 2000
    for free, fits in ((2 * (500 * TOKEN + WEIGHTS), 500), (10, 0)):
        with refused(
            ConfigError, f"of 514 tokens would not fit into memory.*; {fits} tokens would"
        ):
            sized(config(), folder, free)


def test_pool_that_cannot_hold_a_row_is_refused(folder):
    with refused(ConfigError, "must hold one row .*: 514 tok.* not 513", key=POOL):
        sized(config(513), folder, 10**12, "cuda")


def test_engine_that_started_with_less_is_refused():
    kv_memory.check_held((ROW, 1), ROW, config())
    kv_memory.check_held((8960, 64), ROW, config(9000))  # whole pages
    with refused(ConfigError, f"^{POOL}: 9000 .* not fit.*; 8896 tokens would"):
        kv_memory.check_held((8896, 64), ROW, config(9000))
    with refused(ConfigError, r"^rollout\.max_model_len .*; 513 tokens would\."):
        kv_memory.check_held((513, 1), ROW, config())


def test_what_the_engine_says_of_memory_becomes_one_sentence():
    log = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current"
    said = kv_memory.refused(log, config(gpu_memory_utilization=0.2)) or ""
    assert said.startswith("rollout.gpu_memory_utilization: at 0.2 of the free")
    assert kv_memory.refused("Killed", config()) is None


# What a container may use


def group(folder: Path, version: int, limit: str, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = {1: ("limit_in_bytes", "usage_in_bytes"), 2: ("max", "current")}
    prefix = "total_" if version == 1 else ""
    for name, value in zip(names[version], (limit, str(used)), strict=True):
        (folder / f"memory.{name}").write_text(f"{value}\n")
    stat = f"anon 5\n{prefix}inactive_file {cache - 1}\n{prefix}active_file 1\n"
    (folder / "memory.stat").write_text(stat)


def test_limits_of_every_group_around_the_process_count(tmp_path, monkeypatch):
    # Without what the engines of other tests have reserved meanwhile.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    member = tmp_path / "cgroup"
    member.write_text("0::/a/b\n")
    group(tmp_path / "fs/a/b", 2, "max", 50, 10)
    group(tmp_path / "fs/a", 2, "1000", 600, 100)
    group(tmp_path / "fs", 2, "2000", 700, 100)
    assert free_bytes(tmp_path / "fs", member) == 500
    # Version 1, also where a container does not see its path.
    member.write_text("5:devices:/x\n4:cpu,memory:/docker/abc\n0::/\n")
    group(tmp_path / "old/memory", 1, "900", 300, 50)
    assert free_bytes(tmp_path / "old", member) == 650
