"""What a row records if it is asked to: the tokens that the filters left, with log probs over them
(`sampling_mask`), and the experts that each token used (`return_routed_experts`)."""

from __future__ import annotations

import pytest
import torch

from inf import ConfigError
from tests.support.architectures import architecture
from tests.support.engines import started
from tests.support.refusals import refused
from tests.support.trained import loaded

PROMPTS = ["What is the capital of France?", "Count to ten."]
FILTERS = {
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.2},
    "all": {"top_k": 20, "top_p": 0.9, "min_p": 0.05},
}


def left(logits: torch.Tensor, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> set[int]:
    """By the definitions: each filter by itself, over the softmax of all."""
    probs, order = logits.double().softmax(-1).sort(descending=True)
    kept = (probs.cumsum(-1) - probs <= top_p) & (probs >= min_p * probs[0])
    return set(order[: top_k or None][kept[: top_k or None]].tolist())


@pytest.mark.parametrize(
    ("name", "temperature"), [("top_k", 1.0), ("top_p", 0.7), ("min_p", 1.0), ("all", 0.7)]
)
def test_mask_and_log_probs_are_those_of_the_definitions(local, hf, name, temperature):
    how = {"temperature": temperature, "n": 2, "max_tokens": 12, "seed": 3, **FILTERS[name]}
    output = local.generate(PROMPTS, sampling_mask=True, **how)
    sizes = set()
    for row in output:
        assert row.token_ids and row.sampling_mask and row.sampling_logprobs
        prompt = local.tokenizer.apply_chat_template(
            [{"role": "user", "content": PROMPTS[row.metadata["prompt_index"]]}],
            add_generation_prompt=True,
            return_dict=False,
        )
        [logits] = hf.get_logits({"prompt_token_ids": prompt}, [row.token_ids])
        steps = zip(
            row.token_ids, logits / temperature, row.sampling_mask, row.sampling_logprobs,
            strict=True,
        )  # fmt: skip
        for token, scores, mask, logprob in steps:
            assert set(mask) == left(scores, **FILTERS[name]) and mask == sorted(mask)
            sizes.add(len(mask))
            kept = scores[mask].log_softmax(-1)[mask.index(token)].item()
            assert logprob == pytest.approx(kept, abs=1e-3)
    assert max(sizes) > 1


def test_rows_without_a_mask_beside_it_and_seeds_stay_as_they_are(tiny):
    how = {"temperature": 1.0, "top_p": 0.7, "seed": 3, "max_tokens": 12}
    plain = tiny.generate(PROMPTS, **how)
    masked = tiny.generate(PROMPTS, sampling_mask=True, **how)
    assert plain.sampling_mask is None and plain.sampling_logprobs is None
    assert masked.token_ids == plain.token_ids and masked.top_logprobs is None
    assert masked.logprobs == [pytest.approx(row, abs=1e-4) for row in plain.logprobs]
    with refused(ConfigError, "stream", key="sampling_mask"):
        tiny.stream("Hi", sampling_mask=True, **how)
    rows = masked.to_dict()
    assert rows[0]["sampling_mask"] == masked.sampling_mask[0]
    assert masked.to_pandas()["sampling_logprobs"][0] == masked.sampling_logprobs[0]


# The experts that each token used.


@pytest.mark.slow
def test_experts_are_transformers_with_cached_prompts_too():
    folder, cached = architecture("qwen3-moe"), 0
    model = loaded(folder, dtype=torch.float32)
    captures = {"sglang": {"enable_return_routed_experts": True}}
    how = {"n": 2, "temperature": 1.0, "seed": 3, "max_tokens": 8}
    with started(folder, engine_kwargs=captures) as engine:
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


def test_engine_that_does_not_capture_them_refuses_by_the_key(tiny):
    with pytest.raises(ConfigError, match="^return_routed_experts: .*enable_return_routed_exp"):
        tiny.generate("Hi", return_routed_experts=True)
