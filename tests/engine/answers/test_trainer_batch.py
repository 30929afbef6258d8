"""`rollout_batch`: what verl's own trainer code takes, on the real engine."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from verl import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
from verl.utils.model import compute_position_id_with_mask
from verl.workers.reward_manager import NaiveRewardManager

from _inf.response.trainer_batch import NON_TENSORS, TENSORS, given_columns
from inf import ConfigError, PromptError
from tests.support.refusals import refused

pytestmark = pytest.mark.verl

P, R = 512, 128  # the session engine's prompt_length and response_length
PROMPTS = ["Hi", "What is the capital of France, and why?", {"prompt_token_ids": [5, 6, 7]}]


@pytest.fixture(scope="module")
def batch(tiny):
    return tiny.rollout_batch(PROMPTS, n=4, max_tokens=20, seed=3, stop_token_ids=list(range(99)))


def test_tensors_have_the_documented_shapes_and_sides(tiny, batch):
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
    assert set(tensors.keys()) == set(TENSORS) and set(batch.non_tensor_batch) < set(NON_TENSORS)
    longer = "A longer question than the others had, by far?"
    both = DataProto.concat([batch, tiny.rollout_batch(longer, max_tokens=99)])
    assert len(both) == rows + 1 and len(set(both.non_tensor_batch["uid"])) == 4


def test_verls_trainer_joins_it_to_the_batch_that_it_came_from(tiny):
    """`RayPPOTrainer.fit` of verl 0.6.1: repeat what was not popped, union, reward, advantage."""
    truths = ["a", "b", "c"]
    prompts = [[{"role": "user", "content": text}] for text in truths]
    uid = np.array(["one", "two", "three"], dtype=object)
    extra = {
        "place": np.arange(3),  # no object dtype, which `union` compares too
        "data_source": np.array(["letters"] * 3, dtype=object),
        "reward_model": np.array([{"style": "rule", "ground_truth": t} for t in truths]),
        "extra_info": np.array([{"index": place} for place in range(3)]),
    }
    kept = DataProto.from_dict({"dummy": torch.arange(3)}, non_tensors={"uid": uid, **extra})
    asked = {"n": 4, "max_tokens": 20, "temperature": 1.0}
    answered = tiny.rollout_batch(prompts, uid=uid, extra=extra, **asked)
    joined = kept.repeat(repeat_times=4, interleave=True).union(answered)
    groups = joined.non_tensor_batch["uid"]
    assert groups.tolist() == [name for name in uid for _ in "1234"]
    assert joined.batch["dummy"].tolist() == joined.non_tensor_batch["prompt_index"].tolist()
    seen = []

    def score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any) -> float:
        seen.append((ground_truth, extra_info["index"], solution_str))
        return float(len(seen) % 3)

    rewards = NaiveRewardManager(tiny.tokenizer, 0, compute_score=score)(joined)
    asked_for = [(truth, place) for place, truth in enumerate(truths) for _ in "1234"]
    texts = answered.non_tensor_batch["completions"].tolist()
    assert seen == [(*each, text) for each, text in zip(asked_for, texts, strict=True)]
    mask = joined.batch["response_mask"].float()
    advantage, _ = compute_grpo_outcome_advantage(rewards, mask, index=groups)
    assert advantage.any()


def test_callers_columns_of_any_kind_are_kept_and_repeated():
    """Lists and arrays, of objects of one length and of several."""
    extra = {
        "a": [[1, 2], [3, 4]],
        "b": np.array([5, 6]),
        "c": ({"x": 1}, None),
        "d": pd.Series([7, 8]),
    }
    columns = given_columns([3, "y"], extra, 2)
    assert {name: values.tolist() for name, values in columns.items()} == {
        "uid": [3, "y"],
        "a": [[1, 2], [3, 4]],
        "b": [5, 6],
        "c": [{"x": 1}, None],
        "d": [7, 8],
    }
    assert columns["b"].dtype == np.int64 and columns["a"].shape == (2,)
    assert len(set(given_columns(None, None, 2)["uid"])) == 2


@pytest.mark.parametrize(
    ("uid", "extra", "says"),
    [
        ("ab", None, "uid: 'ab' is not a list of values, one per prompt"),
        ([{}, {}], None, "uid[0]: {} cannot identify a group"),
        (None, [1], "extra: [1] is not a mapping"),
        (None, {5: [1, 2]}, "extra: 5 is not a column's name"),
        (None, {"x": ["x"]}, "extra.x: 1 values for 2 prompts"),
        (None, {"uid": ["a", "b"]}, "extra.uid: the batch has a column of that name; use uid="),
        (None, {"responses": [1, 2]}, "extra.responses: the batch has a column of that name"),
    ],
)
def test_column_that_does_not_fit_is_refused_by_its_name(uid, extra, says):
    with pytest.raises(ConfigError) as caught:
        given_columns(uid, extra, 2)
    assert str(caught.value).startswith(says)


def test_rows_that_would_all_be_the_same_are_refused_and_by_generate_warned_of(tiny):
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
    with refused(ConfigError, "prompt 1 is above 128", key="max_tokens"):
        tiny.rollout_batch(["a", "b"], max_tokens=[3, 129])
    with refused(PromptError, "at least one row"):
        tiny.rollout_batch([])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answers = tiny.generate("Hi", n=4, seed=0, max_tokens=12).token_ids
    assert len({tuple(ids) for ids in answers}) == 4
