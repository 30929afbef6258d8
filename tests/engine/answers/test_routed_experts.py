"""`return_routed_experts=True`: the experts that each token used are those of Transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inf import ConfigError, InferenceEngine
from tests.support.architectures import architecture
from tests.support.trained import loaded

PROMPTS = ["What is the capital of France?", "What is the capital of Spain? Count to ten first."]


@pytest.mark.slow
def test_experts_are_transformers_with_cached_prompts_too() -> None:
    folder, cached = architecture("qwen3-moe"), 0
    model = loaded(folder, dtype=torch.float32)
    rollout: dict[str, Any] = {"dtype": "float32", "prompt_length": 512, "response_length": 64}
    rollout["engine_kwargs"] = {"sglang": {"enable_return_routed_experts": True}}
    how: dict[str, Any] = {"n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 8}
    with InferenceEngine(model_path=str(folder), rollout=rollout) as engine:
        assert engine.generate(PROMPTS, max_tokens=2).routed_experts is None
        for row in [*engine.generate(PROMPTS * 2, return_routed_experts=True, **how)]:
            cached += row.cached_tokens
            ids = torch.tensor([row.prompt_token_ids + row.token_ids])
            with torch.no_grad():
                routers = model(ids, output_router_logits=True).router_logits
            expected = torch.stack([layer.topk(2, -1).indices for layer in routers], 1)
            got = torch.as_tensor(row.routed_experts)
            assert got.shape == (ids.shape[1] - 1, 4, 2) and got.dtype == torch.int32
            assert torch.equal(got.sort(-1).values, expected[:-1].sort(-1).values.int())
    assert cached > 0


def test_engine_that_does_not_capture_them_refuses_by_the_key(tiny: InferenceEngine) -> None:
    with pytest.raises(ConfigError, match="^return_routed_experts: .*enable_return_routed_exp"):
        tiny.generate("Hi", return_routed_experts=True)
