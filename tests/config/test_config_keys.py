"""The keys of a config: their types, their limits, and who reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from _inf.backends.registry import read_config
from _inf.config import Config, check_engine_kwargs
from _inf.config.verl_keys import ONE_VALUE, OWNED_BY_KEY
from _inf.errors import ConfigError
from tests.support.config_faults import at, faults
from tests.support.upstream import dataclass_fields

VERL_ROLLOUT = "verl/workers/config/rollout.py"
SERVER_ARGS = "sglang/srt/server_args.py"


def leaves(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        here = f"{path}.{name}" if path else name
        if isinstance(field.default, BaseModel):
            yield here, {}
            yield from leaves(type(field.default), here)
        else:
            yield here, field.default


ALL_KEYS = dict(leaves(Config))
SECTIONS = [path for path, default in ALL_KEYS.items() if isinstance(default, dict)]
# The defaults that are not those of verl's dataclass.
OURS = {"name", "mode", "dtype", "load_format", "skip_tokenizer_init", "free_cache_engine"}
OURS |= {"tensor_model_parallel_size", "enforce_eager", "multi_turn.max_parallel_calls"}
NULL_TOO = {"hang_timeout"}  # its default is another value


# ── Upstream's names ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.verl
def test_defaults_are_verls_but_for_the_named_ones():
    different = set()
    for section, name in (("", "RolloutConfig"), ("multi_turn.", "MultiTurnConfig")):
        for key, text in dataclass_fields(VERL_ROLLOUT, name).items():
            default = ALL_KEYS.get(f"rollout.{section}{key}", ...)
            if default is not ... and not text.startswith("field(") and text != repr(default):
                different.add(section + key)
    assert different == OURS


# ── Keys and values ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("rollout.temprature", "did you mean 'temperature'?"),
        ("rollout.multi_turn.temperature", "it belongs at rollout.temperature"),
        ("rollout.max_new_tokens", "it belongs at rollout.response_length"),
        ("tempratur", "did you mean 'rollout.temperature'?"),
        ("torch_dtype", "here it is rollout.dtype"),
        ("rollout.stop_strings", "here it is generate()'s keyword stop"),
        ("rollout.xyzzy", ""),
    ],
)
def test_unknown_key_names_the_nearest_right_one(path, says):
    assert faults(at(path, {"x": 1})) == [f"{path}: unknown key; {says}".removesuffix("; ")]


def wrong_values(default: Any) -> list[Any]:
    if isinstance(default, bool):
        return ["yes", 1, 0.0, None, {"x": 1}, [True]]
    if isinstance(default, int):
        return ["1", True, 1.5, None, {"x": 1}, [1]]
    if isinstance(default, float):
        return ["0.5", True, None, float("nan"), {"x": 1}, [0.5]]
    if isinstance(default, str):
        return [1, True, None, {"x": 1}, ["auto"]]
    if isinstance(default, dict):
        return [5, True, "x", ["x"]]
    return [object(), {"x": 1}, [[]], float("nan")]  # null by default, or a list


@pytest.mark.parametrize("path", ALL_KEYS)
def test_key_takes_its_default_and_refuses_wrong_types_by_its_path(path):
    own = read_config(at(path, ALL_KEYS[path]), {"model_path": "another"})
    assert own == read_config(None, {"model_path": "another"})
    for value in wrong_values(ALL_KEYS[path]):
        if path in NULL_TOO and value is None or path.removeprefix("rollout.") in ONE_VALUE:
            continue
        first = faults(at(path, value))[0]
        assert first.startswith((f"{path}: ", f"{path}.")), (value, first)


@pytest.mark.verl
@pytest.mark.parametrize(
    ("key", "bad", "good"),
    [
        ("top_p", [0, 1.1], [0.01, 1]),
        ("temperature", [-0.1], [0, 2]),
        ("top_k", [0, -2, 2**40], [-1, 1]),
        ("n", [0], [1, 8]),
        ("prompt_length", [0, 2**40], [1]),
        ("max_num_seqs", [0], [1]),
        ("gpu_memory_utilization", [0, 1.0], [0.01, 0.99]),
        ("max_model_len", [1023], [1024, None]),
        ("over_sample_rate", [1, -0.1], [0]),
        ("dtype", ["bf16", ""], ["float"]),
        ("expert_parallel_size", [2, 0], [1]),
        ("name", ["vllm", ""], ["sglang"]),
        ("cudagraph_capture_sizes", [[0], [True]], [[], [1, 2]]),
    ],
)
def test_impossible_values_are_refused_up_to_the_limit(key, bad, good):
    for value in bad:
        assert faults(at(f"rollout.{key}", value))[0].startswith(f"rollout.{key}"), value
    for value in good:
        assert getattr(read_config(at(f"rollout.{key}", value), {}).rollout, key) == value


@pytest.mark.verl
def test_keys_that_depend_on_one_another():
    sizes = {"tensor_model_parallel_size": 2, "data_parallel_size": 2, "expert_parallel_size": 4}
    assert read_config({"rollout": sizes}, {}).rollout.expert_parallel_size == 4
    assert faults({"rollout": {**sizes, "expert_parallel_size": 2}})[0].endswith("= 4, not 2")
    of_one = {"rollout": {"tensor_model_parallel_size": 2}}
    says = "generation_cache: must be 0 with rollout.tensor_model_parallel_size 2"
    assert faults(of_one | {"generation_cache": 9}) == [says]
    assert faults({"hang_timeout": 0}) == ["hang_timeout: 0 is out of range; it must be above 0"]
    for value in (30, None):
        assert read_config({"hang_timeout": value}, {}).hang_timeout == value
    # A section that nothing reads may be null, or switched off with anything in it.
    off = {"enable": False, "port": 1, "tool_config": {"x": 1}}
    assert read_config({"rollout": {"agent": None, "profiler": off, "prometheus": off}}, {})


def test_all_faults_are_listed_in_one_error(tmp_path):
    text = """
    rollout:
      response_length: 0
      tempreture: 1
      multi_turn: {num_repeat_rollouts: 2}
      engine_kwargs: {sglang: {port: 1}, vllm: {x: 1}}
      mode: sync
      max_model_len: 5
    device: tpu
    """
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert {line.partition(": ")[0] for line in faults(file)} == {
        "rollout.response_length",
        "rollout.tempreture",
        "rollout.multi_turn.num_repeat_rollouts",
        "rollout.engine_kwargs.sglang.port",
        "rollout.engine_kwargs.vllm.x",
        "rollout.mode",
        "rollout.max_model_len",
        "device",
    }


# ── Keys that nothing reads ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ONE_VALUE)
def test_key_without_effect_loads_at_its_neutral_values_and_is_refused_with_the_reason(
    key,
):
    (neutral, reason), path = ONE_VALUE[key], f"rollout.{key}"
    for value in neutral if isinstance(neutral, tuple) else (neutral,):
        assert read_config(at(path, value), {}) == read_config({}, {})
    (line,) = faults(at(path, {"x": 1}))
    where = f"{path}.x" if neutral == {} else path
    assert line.startswith(f"{where}: must be ") and line.endswith(f": {reason}")


@pytest.mark.verl
@pytest.mark.parametrize("key", ["tool_config_path", "interaction_config_path"])
def test_file_of_a_multi_turn_that_is_off_is_refused(key):
    (line,) = faults(at(f"rollout.multi_turn.{key}", "x.yaml"))
    assert "multi_turn.enable is false" in line
    read_config({"rollout": {"multi_turn": {"enable": True, key: "x.yaml"}}}, {})


# ── engine_kwargs ────────────────────────────────────────────────────────────────────────────────


OWNERS = {key: f"set {owner} instead" for key, owner in OWNED_BY_KEY.items()}
OWNERS |= dict.fromkeys(("port", "nccl_port"), "the engine sets it itself; remove it")


@pytest.mark.verl
@pytest.mark.parametrize("key", sorted(OWNERS))
def test_argument_that_a_key_or_the_engine_owns_is_refused(key):
    path = f"rollout.engine_kwargs.sglang.{key}"
    assert faults(at(path, 1)) == [f"{path}: {OWNERS[key]}"]


@pytest.mark.verl
def test_argument_that_sglang_lacks_is_named_with_the_nearest():
    known = dataclass_fields(SERVER_ARGS, "ServerArgs").keys()
    good = {"page_size": 1, "attention_backend": "triton"}
    check_engine_kwargs(read_config(at("rollout.engine_kwargs.sglang", good), {}), known)
    bad = read_config(at("rollout.engine_kwargs.sglang", {**good, "page_sise": 1, "zz": 2}), {})
    with pytest.raises(ConfigError) as caught:
        check_engine_kwargs(bad, known)
    assert str(caught.value).splitlines() == [
        "rollout.engine_kwargs.sglang.page_sise: SGLang has no such argument;"
        " did you mean 'page_size'?",
        "rollout.engine_kwargs.sglang.zz: SGLang has no such argument",
    ]


def test_only_sglang_has_arguments():
    assert read_config(at("rollout.engine_kwargs", {"vllm": {}, "sglang": None}), {})
    assert "must be 'sglang', not 'sglan'" in faults(at("rollout.engine_kwargs.sglan", {}))[0]


def test_both_files_of_the_project_serve_transformers_too():
    for file in (str(Path(__file__).parents[2] / "config.yaml"), None):
        assert read_config(file, {"rollout": {"name": "hf"}})
