"""How rows are computed on `hf` is found out from the model itself."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from _inf.backends.hf.forward import Forward
from inf import ConfigError, InferenceEngine
from tests.support.prompts import as_ids
from tests.support.shrunk_configs import CONTEXT, known, shrunk
from tests.support.tiny import save_tokenizer
from tests.support.vision import picture

ROLLOUT = {"name": "hf", "dtype": "float32", "prompt_length": 64, "response_length": 16}
ROWS = [list(range(1, 6)), list(range(4, 40))]


def model_of(kind: str, auto: Any = transformers.AutoModelForCausalLM) -> Any:
    """A tiny random model of a model type."""
    if not known(kind):
        pytest.skip(f"this Transformers has no {kind}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return auto.from_config(shrunk(kind), dtype=torch.float32).eval()


def saved(kind: str, folder: Path, auto: Any = transformers.AutoModelForCausalLM) -> Any:
    model = model_of(kind, auto)
    save_tokenizer(folder, CONTEXT)
    model.save_pretrained(folder)
    return model


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "cached"),
    [
        ("llama", True),
        ("qwen3_next", False),
        ("lfm2_moe", False),
        ("olmo_hybrid", False),
    ],
)
def test_model_with_a_state_is_computed_alone_and_equals_one_pass(kind, cached):
    forward = Forward(model_of(kind), 200)
    assert (forward.cached, forward.causal) == (cached, True)
    assert len(forward.grouped([5, 5], 1000, [None, None])) == (1 if cached else 2)
    for row in ROWS:
        with torch.no_grad():
            plain = forward.model(input_ids=torch.tensor([row]), use_cache=False).logits
        torch.testing.assert_close(forward([row])[:, -1], plain[:, -1], atol=1e-4, rtol=0)


@pytest.mark.engine
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_model_that_sees_later_tokens_is_refused_by_name(dtype, tmp_path):
    saved("bert", tmp_path)
    with pytest.raises(ConfigError, match="BertLMHeadModel does not run .* tokens after it"):
        InferenceEngine(model_path=str(tmp_path), rollout=ROLLOUT | {"dtype": dtype})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["llama", "mixtral", "qwen3_moe"])
def test_rows_of_half_precision_share_a_cache_as_those_of_float32_do(kind, dtype):
    forward = Forward(model_of(kind).to(dtype), 200)
    assert (forward.cached, forward.causal) == (True, True)


@pytest.mark.parametrize(
    ("lacks", "dtype"),
    [
        ("attention_mask", torch.float32),
        ("attention_mask", torch.bfloat16),
        ("position_ids", torch.float32),
    ],
)
def test_model_that_sees_padding_or_counts_it_is_computed_alone(lacks, dtype, monkeypatch):
    model = model_of("llama").to(dtype)
    own = model.forward

    @functools.wraps(own)
    def without(**given: Any) -> Any:
        return own(**{**given, lacks: None})

    monkeypatch.setattr(model, "forward", without)
    assert not Forward(model, 200).cached


@pytest.mark.engine
def test_model_that_needs_another_ones_states_is_refused_by_name(tmp_path):
    saved("gemma4_unified_assistant", tmp_path)
    with pytest.raises(
        ConfigError, match="AssistantForCausalLM does not run .* row from token ids"
    ):
        InferenceEngine(model_path=str(tmp_path), rollout=ROLLOUT)


@pytest.mark.engine
@pytest.mark.parametrize("kind", ["mistral3", "gemma4", "qwen3_5_moe"])
def test_model_of_several_modalities_answers_text_without_a_processor(kind, tmp_path):
    model = saved(kind, tmp_path, transformers.AutoModelForImageTextToText)
    image = [{"type": "image", "image": picture(1, 8, 8)}]
    with InferenceEngine(model_path=str(tmp_path), rollout=ROLLOUT) as engine:
        prompt = list(range(4, 30))
        row = engine.generate(as_ids([prompt]), temperature=0, max_tokens=8, ignore_eos=True)[0]
        with torch.no_grad():
            ids = torch.tensor([prompt + list(row.token_ids)])
            table = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        plain = [float(table[25 + place, token]) for place, token in enumerate(row.token_ids)]
        assert row.logprobs == pytest.approx(plain, abs=1e-4)
        with pytest.raises(ConfigError, match="has no processor|needs another package"):
            engine.generate([[{"role": "user", "content": image}]])
