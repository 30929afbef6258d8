"""Every architecture is exact or refused: tiny random models on engines against Transformers.

Each costs an engine. The default run takes a few; `-m architectures` takes all.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inf import ConfigError, InferenceEngine
from tests.support import architectures
from tests.support.architectures import MODELS, architecture
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import Transformers, assert_greedy
from tests.support.tiny import tiny_model

SETTINGS = {
    "dtype": "float32",
    "prompt_length": 800,
    "response_length": 64,
    "max_num_seqs": 16,
    "enforce_eager": True,
}
WITHIN = 1e-4
# Shorter and longer than the windows, longer than the blocks in which attention is computed on a
# CPU, and together as many as run at once.
[LONG, OTHER] = token_prompts(2, longest=550, seed=3, shortest=550)
PROMPTS = token_prompts(7, longest=20, seed=1) + token_prompts(8, longest=200, seed=2) + [LONG]
GREEDY = {"temperature": 0, "max_tokens": 32, "ignore_eos": True}
# Soft caps, windows, experts, learned positions; factors of longer rows are in
# `test_backends.py`, a plain llama is in `test_finish_reasons.py`.
EVERY_RUN = {
    "sglang": ("gemma2", "qwen3-moe"),
    "hf": ("gemma2", "gpt2"),
}
INEXACT = {"sglang": ("gpt2-untied",), "hf": ()}
# What SGLang serves up to 512 tokens only: a sliding window, and longrope's short factors.
BOUNDED = {"sglang": ("mistral", "phi3-longrope"), "hf": ()}


def assert_exact(engine: InferenceEngine, model: Transformers) -> None:
    most = engine.model.limits.prompt
    prompts = [prompt[:most] for prompt in PROMPTS]
    together = engine.generate(as_ids(prompts), **GREEDY)
    assert_greedy(model, prompts, together, 32, WITHIN)
    for row in (0, 15):
        alone = engine.generate(as_ids([prompts[row]]), **GREEDY)
        assert alone.token_ids == [together.token_ids[row]]
        assert alone.logprobs[0] == pytest.approx(together.logprobs[row], abs=WITHIN)
    longer = [p + a for p, a in zip(prompts, together.token_ids, strict=True)][::4]
    longer.append((LONG[:150] + OTHER)[:most])  # their beginnings are cached
    assert_greedy(model, longer, engine.generate(as_ids(longer), **GREEDY), 32, WITHIN)
    scores = engine.get_logprobs(as_ids(prompts), together.token_ids)
    for ours, scored in zip(together.logprobs, scores, strict=True):
        assert scored == pytest.approx(ours, abs=WITHIN)


def changed(model: Any) -> Any:
    """The same architecture after some training."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    return model


def marked(backend: str, name: str) -> Any:
    every_run = [pytest.mark.every_run] * (name in EVERY_RUN[backend])
    return pytest.param(backend, name, marks=[pytest.mark.architectures, *every_run])


@pytest.mark.parametrize(
    ("backend", "name"),
    [marked(backend, n) for backend in EVERY_RUN for n in MODELS if n not in INEXACT[backend]],
)
def test_architecture_equals_transformers_before_and_after_an_update(backend, name):
    folder = architecture(name)
    model = dataclasses.replace(Transformers.of(folder), ends=frozenset())  # as `ignore_eos`
    rollout = {"name": backend, **SETTINGS}
    if name in BOUNDED[backend]:
        rollout["prompt_length"] = 440
    with InferenceEngine(model_path=str(folder), rollout=rollout) as engine:
        assert_exact(engine, model)
        engine.update_weights(changed(model.model))
        assert_exact(engine, model)


def refused(reason: str, model: Path, **rollout: Any) -> None:
    with pytest.raises(ConfigError, match=reason):
        InferenceEngine(model_path=str(model), rollout=SETTINGS | rollout)


@pytest.mark.architectures
def test_model_with_a_weight_that_sglang_has_no_place_for_is_refused():
    """SGLang's GPT-2 always takes the embeddings as its head."""
    refused("no place for lm_head.weight", architecture("gpt2-untied"))


@pytest.mark.verl
def test_checkpoint_that_lacks_a_weight_is_refused(tmp_path):
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(r"leaves model\.layers\.1\.self_attn\.qkv_proj\.weight", folder)


@pytest.mark.verl
def test_windowed_model_on_sglangs_own_cpu_attention_is_refused():
    own = {"engine_kwargs": {"sglang": {"attention_backend": "torch_native"}}}
    too_long = f"max_model_len: 864 tokens are more than {architectures.WINDOW}"
    refused(too_long, architecture("olmo3"), **own)
    capped = "attention_backend: torch_native ignores the soft caps"
    refused(capped, architecture("gemma2"), **own)


@pytest.mark.verl
def test_bad_config_is_refused_before_anything_starts(tmp_path):
    """A config without a context, as state space models have."""
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    (folder / "config.json").write_text(json.dumps(config))
    refused("MambaForCausalLM does not run with SGLang", folder)
