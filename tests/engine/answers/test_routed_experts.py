"""`return_routed_experts=True`: the experts that each token used are those of Transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from inf import ConfigError, InferenceEngine
from tests.support.architectures import architecture

PROMPTS = ["What is the capital of France?", "What is the capital of Spain? Count to ten first."]


@pytest.fixture(scope="module")
def experts() -> Iterator[InferenceEngine]:
    with InferenceEngine(
        model_path=str(architecture("qwen3-moe")),
        rollout={
            "dtype": "float32",
            "prompt_length": 512,
            "response_length": 64,
            "engine_kwargs": {"sglang": {"enable_return_routed_experts": True}},
        },
    ) as engine:
        yield engine


@pytest.mark.slow
def test_experts_are_transformers_with_cached_prompts_too(experts: InferenceEngine) -> None:
    folder = architecture("qwen3-moe")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    cached = 0
    for _ in range(2):
        how: dict[str, Any] = {"n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 8}
        for row in experts.generate(PROMPTS, return_routed_experts=True, **how):
            cached += row.metadata["cached_tokens"]
            message = [{"role": "user", "content": PROMPTS[row.metadata["prompt_index"]]}]
            prompt = experts.tokenizer.apply_chat_template(
                message, add_generation_prompt=True, return_dict=False
            )
            ids = torch.tensor([prompt + (row.token_ids or [])])
            with torch.no_grad():
                routers = model(ids, output_router_logits=True).router_logits
            expected = torch.stack([layer.topk(2, -1).indices for layer in routers], 1)
            got = torch.as_tensor(row.routed_experts)
            assert got.shape == (ids.shape[1] - 1, 4, 2) and got.dtype == torch.int32
            assert torch.equal(got.sort(-1).values, expected[:-1].sort(-1).values.int())
    assert cached > 0
    assert experts.generate(PROMPTS, max_tokens=2).routed_experts is None


def test_engine_that_does_not_capture_them_refuses_by_the_key(tiny: InferenceEngine) -> None:
    with pytest.raises(ConfigError, match="^return_routed_experts: .*enable_return_routed_exp"):
        tiny.generate("Hi", return_routed_experts=True)
