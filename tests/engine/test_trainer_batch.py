"""`rollout_batch`: what verl's own trainer code takes, on the real engine."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import Reference
from verl import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils.model import compute_position_id_with_mask

from inf import ConfigError, InferenceEngine, PromptError

P, R = 512, 128  # the session engine's prompt_length and response_length
PROMPTS = ["Hi", "What is the capital of France, and why?", {"prompt_token_ids": [5, 6, 7]}]


@pytest.fixture(scope="module")
def batch(tiny: InferenceEngine) -> Any:
    return tiny.rollout_batch(PROMPTS, n=4, max_tokens=20, seed=3, stop_token_ids=list(range(99)))


def test_tensors_have_the_documented_shapes_and_sides(tiny: InferenceEngine, batch: Any) -> None:
    tensors, rows = batch.batch, 12
    assert {name: tuple(tensors[name].shape) for name in tensors.keys()} == {
        "prompts": (rows, P),
        "responses": (rows, R),
        "response_mask": (rows, R),
        "input_ids": (rows, P + R),
        "attention_mask": (rows, P + R),
        "position_ids": (rows, P + R),
        "rollout_log_probs": (rows, R),
    }
    seen = tensors["attention_mask"].bool()
    assert not seen[:, 0].any() and seen[:, P - 1].all() and not seen[:, -1].any()
    assert torch.equal(tensors["attention_mask"][:, P:], tensors["response_mask"])
    joined = torch.cat([tensors["prompts"], tensors["responses"]], dim=1)
    assert torch.equal(tensors["input_ids"], joined)
    assert (joined[~seen] == tiny.tokenizer.pad_token_id).all()
    expected = compute_position_id_with_mask(tensors["attention_mask"])
    assert torch.equal(tensors["position_ids"], expected)
    assert tensors["prompts"][8, -3:].tolist() == [5, 6, 7]


def test_log_probs_are_the_models_and_zero_where_nothing_was_sampled(
    tiny: InferenceEngine, batch: Any
) -> None:
    tensors = batch.batch
    mask = tensors["response_mask"].bool()
    assert (tensors["rollout_log_probs"][~mask] == 0).all()
    lengths = mask.sum(dim=1).tolist()
    assert len(set(lengths)) > 2  # some were stopped
    logits = (
        Reference.of(tiny)
        .model(
            input_ids=tensors["input_ids"],
            attention_mask=tensors["attention_mask"],
            position_ids=tensors["position_ids"],
        )
        .logits[:, P - 1 : -1]
    )
    expected = torch.log_softmax(logits, -1).gather(2, tensors["responses"][..., None])[..., 0]
    assert (expected.detach() - tensors["rollout_log_probs"])[mask].abs().max() < 1e-3


def test_uid_groups_the_samples_of_a_prompt(batch: Any) -> None:
    uids = batch.non_tensor_batch["uid"].reshape(3, 4)
    assert all(len(set(group)) == 1 for group in uids) and len(set(uids.flat)) == 3
    assert batch.non_tensor_batch["prompt_index"].tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_verls_own_operations_take_it(tiny: InferenceEngine, batch: Any, tmp_path: Path) -> None:
    longer = "A longer question than the others had, by far?"
    other = tiny.rollout_batch(longer, n=4, max_tokens=99, temperature=1.0)
    both = DataProto.concat([batch, other])
    assert len(both) == 16 and len(set(both.non_tensor_batch["uid"])) == 4
    assert [len(part) for part in both.chunk(4)] == [4] * 4
    extra = DataProto.from_dict(tensors={"ref_log_prob": torch.zeros(16, R)})
    assert "ref_log_prob" in both.union(extra).batch.keys()
    both.save_to_disk(str(tmp_path / "batch.pt"))
    again = DataProto.load_from_disk(str(tmp_path / "batch.pt"))
    assert torch.equal(again.batch["responses"], both.batch["responses"])
    assert again.non_tensor_batch["uid"].tolist() == both.non_tensor_batch["uid"].tolist()


def test_verls_grpo_advantage_compares_the_samples_of_a_prompt(batch: Any) -> None:
    mask = batch.batch["response_mask"]
    scores = torch.arange(12.0) % 4  # 0 to 3 within each group
    on_last = torch.zeros(12, R)
    on_last[torch.arange(12), mask.sum(1) - 1] = scores
    advantage, _ = compute_grpo_outcome_advantage(
        on_last, mask.float(), index=batch.non_tensor_batch["uid"]
    )
    assert (advantage[mask == 0] == 0).all()
    first = advantage[:, 0].reshape(3, 4).numpy()
    assert (np.diff(first) > 0).all() and np.allclose(first.mean(axis=1), 0, atol=1e-5)


def test_rows_that_would_all_be_the_same_are_refused_and_by_generate_warned_of(
    tiny: InferenceEngine,
) -> None:
    same = "n: the 4 samples of prompt 0 are all the same"
    with pytest.raises(ConfigError, match=same):
        tiny.rollout_batch(PROMPTS, n=4, max_tokens=3)
    with pytest.warns(UserWarning, match=same) as heard:
        output = tiny.generate(PROMPTS, n=4, max_tokens=3)
    assert len(heard) == 1 and heard[0].filename == __file__
    assert output.token_ids[0] == output.token_ids[3]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(tiny.rollout_batch(PROMPTS, max_tokens=3)) == 3  # a validation's
        answers = tiny.generate("Hi", n=4, seed=0, max_tokens=12).token_ids
    assert len({tuple(ids) for ids in answers}) == 4


def test_what_does_not_fit_the_batch_is_refused(tiny: InferenceEngine) -> None:
    with pytest.raises(ConfigError, match="max_tokens: 129 for prompt 1 is above 128"):
        tiny.rollout_batch(["a", "b"], max_tokens=[3, 129])
    with pytest.raises(PromptError, match="at least one row"):
        tiny.rollout_batch([])
