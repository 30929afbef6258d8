"""How rows are computed on `hf` is found out from the model itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from _inf.backends.hf.forward import Forward
from inf import ConfigError, InferenceEngine, PromptError
from tests.support.prompts import as_ids
from tests.support.tiny import IM_END, _tokenizer, save_tiny

SMALL: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
DELTA: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ROWS = [list(range(1, 6)), list(range(4, 40))]


def forward_of(kind: str, **own: Any) -> Forward:
    config = getattr(transformers, kind)(**SMALL, **own)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return Forward(model.eval(), 200)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("kind", "own", "cached"),
    [
        ("LlamaConfig", {}, True),
        ("Qwen3NextConfig", DELTA | EXPERTS, False),
        ("Qwen3_5TextConfig", DELTA, False),
        ("Lfm2Config", {"layer_types": ["conv", "full_attention"] * 2}, False),
        ("OlmoHybridConfig", {"layer_types": DELTA["layer_types"]}, False),
    ],
)
def test_model_with_a_state_is_computed_alone_and_equals_one_pass(
    kind: str, own: dict[str, Any], cached: bool
) -> None:
    if not hasattr(transformers, kind):
        pytest.skip(f"this Transformers has no {kind}")
    forward = forward_of(kind, **own)
    assert (forward.cached, forward.causal) == (cached, True)
    assert len(forward.grouped([5, 5], 1000, [None, None])) == (1 if cached else 2)
    for row in ROWS:
        with torch.no_grad():
            plain = forward.model(input_ids=torch.tensor([row]), use_cache=False).logits
        torch.testing.assert_close(forward([row])[:, -1], plain[:, -1], atol=1e-4, rtol=0)


@pytest.mark.engine
def test_model_that_sees_later_tokens_is_refused_by_name(tmp_path: Any) -> None:
    sizes = {key: value for key, value in SMALL.items() if key != "head_dim"}
    save_tiny(transformers.BertConfig(**sizes), 0, tmp_path, 512)
    rollout = {"name": "hf", "dtype": "float32", "prompt_length": 64, "response_length": 16}
    with pytest.raises(ConfigError, match="BertLMHeadModel does not run .* tokens behind it"):
        InferenceEngine(model_path=str(tmp_path), rollout=rollout)


@pytest.mark.engine
def test_model_of_several_modalities_answers_text_and_refuses_an_image(tmp_path: Any) -> None:
    text = {**SMALL, "model_type": "mistral", "max_position_embeddings": 512, "eos_token_id": 2}
    sight = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    sight |= {"model_type": "pixtral", "num_attention_heads": 2, "head_dim": 16, "image_size": 32}
    config = transformers.Mistral3Config(text_config=text, vision_config=sight)
    _tokenizer(dict(eos=(IM_END,), bos=False, pad="distinct", context=512)).save_pretrained(
        tmp_path
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.float32)
    model.eval().save_pretrained(tmp_path)
    rollout = {"name": "hf", "dtype": "float32", "prompt_length": 64, "response_length": 16}
    picture = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with InferenceEngine(model_path=str(tmp_path), rollout=rollout) as engine:
        prompt = list(range(4, 30))
        row = engine.generate(as_ids([prompt]), temperature=0, max_tokens=8, ignore_eos=True)[0]
        with torch.no_grad():
            ids = torch.tensor([prompt + list(row.token_ids)])
            table = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        plain = [float(table[25 + place, token]) for place, token in enumerate(row.token_ids)]
        assert row.logprobs == pytest.approx(plain, abs=1e-4)
        with pytest.raises(PromptError, match="only text is supported"):
            engine.generate([[{"role": "user", "content": picture}]])
