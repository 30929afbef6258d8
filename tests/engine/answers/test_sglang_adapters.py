"""Rows of SGLang with a LoRA adapter are those of Transformers with the adapter merged by PEFT."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from inf import ConfigError, GenerationTimeout, InferenceEngine
from tests.support.architectures import architecture
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import Transformers, assert_greedy
from tests.support.tiny import tiny_model
from tests.support.trained import adapter, loaded

WITHIN = 1e-3
ADAPTERS = {"enable_lora": True, "max_lora_rank": 8, "max_loras_per_batch": 3}
SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "prompt_length": 256,
    "response_length": 64,
    "max_num_seqs": 64,
    "enforce_eager": True,
    "engine_kwargs": {"sglang": ADAPTERS},
}
ALL = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "o_proj", "down_proj"]
# SGLang alone would compute "parts" wrongly, or die of it.
HOW: dict[str, dict[str, Any]] = {
    "whole": {"target_modules": ALL},
    "parts": {
        "target_modules": ["k_proj", "up_proj"],
        "layers_to_transform": [1],
        "r": 8,
        "use_rslora": True,
        "rank_pattern": {"up_proj": 2},
        "alpha_pattern": {"k_proj": 3},
    },
}
PROMPTS = token_prompts(12, longest=60, seed=3)
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: adapter(tiny_model(), folder / name, **how) for name, how in HOW.items()}


@pytest.fixture(scope="module")
def served(folders: dict[str, Path]) -> Iterator[InferenceEngine]:
    with InferenceEngine(model_path=str(tiny_model()), rollout=SETTINGS) as engine:
        for name, folder in folders.items():
            assert engine.load_adapter(name, folder) == 0
        yield engine


def merged(base: Any, folder: Path | None) -> Transformers:
    plain = dataclasses.replace(Transformers.of(base), ends=frozenset())  # as `ignore_eos`
    if folder is None:
        return plain
    model = PeftModel.from_pretrained(plain.model, str(folder)).merge_and_unload()
    return dataclasses.replace(plain, model=model)


def assert_exact(engine: InferenceEngine, models: dict[str | None, Transformers]) -> None:
    """One batch of rows with each of these adapters, or with none, and each row alone."""
    names = [list(models)[index % len(models)] for index in range(len(PROMPTS))]
    together = engine.generate(as_ids(PROMPTS), adapter=names, **GREEDY)
    for name, model in models.items():
        rows = [index for index, each in enumerate(names) if each == name]
        prompts = [PROMPTS[index] for index in rows]
        assert_greedy(model, prompts, [together[index] for index in rows], 24, WITHIN)
        answers = [together[index].token_ids for index in rows]
        for index, scored in zip(
            rows, engine.get_logprobs(as_ids(prompts), answers, adapter=name), strict=True
        ):
            assert scored == pytest.approx(together[index].logprobs, abs=WITHIN)
        alone = engine.generate(as_ids(prompts[:1]), adapter=name, **GREEDY)
        assert alone.token_ids == answers[:1]


def test_rows_of_several_adapters_and_of_none_are_those_of_merged_models(
    served: InferenceEngine, folders: dict[str, Path]
) -> None:
    models = {name: merged(tiny_model(), folders.get(name or "")) for name in (*HOW, None)}
    assert_exact(served, models)
    each = [served.generate(as_ids(PROMPTS[:1]), adapter=name, **GREEDY) for name in models]
    assert len({tuple(output.token_ids[0]) for output in each}) == len(models)


def test_cached_prefixes_are_those_of_the_adapter_itself(
    served: InferenceEngine, folders: dict[str, Path]
) -> None:
    [prompt] = token_prompts(1, longest=100, shortest=100, seed=4)

    def cached(name: str | None) -> int:
        row = served.generate(as_ids([prompt]), adapter=name, **GREEDY)[0]
        return int(row.metadata["cached_tokens"])

    assert [cached(name) for name in ("whole", "parts", None)] == [0, 0, 0]
    assert [cached(name) for name in ("whole", "parts", None)] == [99, 99, 99]
    assert served.load_adapter("whole", folders["whole"]) == 1
    assert cached("whole") == 0  # the cache is emptied


def test_adapter_is_replaced_from_a_state_dict_and_counted(
    served: InferenceEngine, folders: dict[str, Path]
) -> None:
    from safetensors.torch import load_file

    state = load_file(folders["whole"] / "adapter_model.safetensors")
    before = served.generate(as_ids(PROMPTS[:1]), adapter="whole", **GREEDY)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    assert served.load_adapter("whole", zeros, version=7) == 7
    none = served.generate(as_ids(PROMPTS[:1]), adapter="whole", **GREEDY)
    assert none.token_ids == served.generate(as_ids(PROMPTS[:1]), **GREEDY).token_ids
    assert none[0].metadata["weight_version"] == 7 and served.weight_version == 0
    assert served.load_adapter("whole", state) == 8
    assert served.generate(as_ids(PROMPTS[:1]), adapter="whole", **GREEDY).token_ids == (
        before.token_ids
    )


def test_adapter_that_sglang_cannot_serve_is_refused(
    served: InferenceEngine, folders: dict[str, Path], tmp_path: Path
) -> None:
    head = adapter(tiny_model(), tmp_path / "head", target_modules=["lm_head"])
    large = adapter(tiny_model(), tmp_path / "large", r=9)
    for name, folder, reason in (
        ("whole", head, r"adapters\.whole: .*lm_head"),
        ("whole", large, r"adapters\.whole: its rank is 9, .*max_lora_rank 8"),
        ("third", folders["whole"], r"adapters\.third: 2 are loaded.*max_loras_per_batch"),
    ):
        with pytest.raises(ConfigError, match=reason):
            served.load_adapter(name, folder)
    assert served.adapters == list(HOW)


def test_adapter_of_aborted_rows_is_unloaded(
    served: InferenceEngine, folders: dict[str, Path]
) -> None:
    """SGLang's own unloading waits without end for rows that were aborted while they waited."""
    prompts = as_ids(token_prompts(200, longest=200, seed=5))
    with pytest.raises(GenerationTimeout):
        served.generate(prompts, adapter="parts", timeout=0.1, **{**GREEDY, "max_tokens": 64})
    served.unload_adapter("parts")
    assert served.adapters == ["whole"]
    with pytest.raises(ConfigError, match="adapter: 'parts' is not loaded"):
        served.generate(prompts[:1], adapter="parts", **GREEDY)
    served.load_adapter("parts", folders["parts"])


def test_engine_that_was_not_started_for_adapters_names_the_key(tiny: InferenceEngine) -> None:
    with pytest.raises(ConfigError, match="does not offer it; .*: sglang with enable_lora or"):
        tiny.generate(as_ids(PROMPTS[:1]), adapter="whole")


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        ({"lora_paths": ["a=b"]}, r"lora_paths: leave it out; engine\.load_adapter"),
        ({**ADAPTERS, "lora_backend": "triton"}, "lora_backend: leave it out"),
    ],
)
def test_arguments_of_sglangs_own_adapters_are_refused(own: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        InferenceEngine(model_path=str(tiny_model()), rollout={"engine_kwargs": {"sglang": own}})


def test_adapters_beside_tensor_parallelism_are_refused() -> None:
    rollout = {**SETTINGS, "tensor_model_parallel_size": 2}
    with pytest.raises(ConfigError, match="enable_lora: must be false beside .* 2"):
        InferenceEngine(model_path=str(tiny_model()), rollout=rollout)


def test_model_whose_adapters_were_never_compared_is_refused() -> None:
    with pytest.raises(ConfigError, match="enable_lora: .*adapters of Qwen3MoeForCausalLM"):
        InferenceEngine(model_path=str(architecture("qwen3-moe")), rollout=SETTINGS)


@pytest.mark.architectures
@pytest.mark.parametrize(
    "name", ["llama", pytest.param("qwen2", marks=pytest.mark.every_run), "qwen3", "mistral"]
)
def test_adapters_of_an_architecture_are_exact_before_and_after_an_update(
    name: str, tmp_path: Path
) -> None:
    """Qwen 2 has biases, for which SGLang's update has no place beside adapters."""
    base = architecture(name)
    folders = {each: adapter(base, tmp_path / each, **how) for each, how in HOW.items()}
    with InferenceEngine(model_path=str(base), rollout=SETTINGS) as engine:
        for each, folder in folders.items():
            engine.load_adapter(each, folder)
        assert_exact(engine, {each: merged(base, folders.get(each or "")) for each in (*HOW, None)})
        changed = loaded(base)
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter.mul_(1.05)
        changed.save_pretrained(tmp_path / "changed")
        engine.update_weights(changed)
        models = {each: merged(tmp_path / "changed", folders.get(each or "")) for each in HOW}
        assert_exact(engine, {**models, None: merged(tmp_path / "changed", None)})
