"""In what a model is computed whose `rollout.dtype` nobody set, or set to auto."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, PretrainedConfig

from _inf.backends.model_info import weight_bytes, with_dtype
from _inf.config import load_config
from inf import ConfigError, InferenceEngine
from tests.support.refusals import refused
from tests.support.tiny import tiny_model


def computed(
    stored: str | None,
    on_cpu: bool,
    source: Any = None,
    model: str | None = "another",
    **rollout: Any,
) -> str:
    config = load_config(source, {"model_path": model, "rollout": rollout})
    return with_dtype(config, on_cpu, PretrainedConfig(dtype=stored)).rollout.dtype


@pytest.mark.parametrize("source", [None, {"rollout": {"dtype": "auto"}}], ids=str)
@pytest.mark.parametrize(
    ("stored", "on_gpu"), [("float16", "float16"), ("float32", "bfloat16"), (None, "bfloat16")]
)
def test_auto_is_float32_on_a_cpu_and_the_checkpoints_half_precision_on_a_gpu(
    stored, on_gpu, source
):
    assert computed(stored, True, source) == "float32"
    assert computed(stored, False, source) == on_gpu
    assert computed(stored, False, source, model=None) == "float32"  # the embedded model
    assert {computed(stored, where, source, dtype="half") for where in (True, False)} == {"half"}
    several = PretrainedConfig()
    several.text_config = PretrainedConfig(dtype="float16")
    config = load_config(None, {"model_path": "another"})
    assert with_dtype(config, False, several).rollout.dtype == "float16"


def test_quantized_weights_are_left_to_the_backend():
    config = load_config(None, {"model_path": "another"})
    quantized = PretrainedConfig(quantization_config={"quant_method": "awq"})
    assert with_dtype(config, True, quantized) is config


def test_weights_that_do_not_fit_on_a_cpu_are_refused_before_they_are_loaded(monkeypatch):
    about = AutoConfig.from_pretrained(tiny_model())
    needed = weight_bytes(Path(tiny_model()), about, "float32")
    monkeypatch.setattr("_inf.backends.hf.launch_hf.free_bytes", lambda: needed - 1)
    rollout = {"name": "hf"}
    with refused(ConfigError, "the weights would take .* in float32", key="rollout.dtype"):
        InferenceEngine(model_path=str(tiny_model()), device="cpu", rollout=rollout)
