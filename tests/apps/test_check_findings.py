"""Metrics and findings of a check, from numbers alone."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from _inf.apps.check import engine_rows, reference
from _inf.apps.check.differences import Pairs, comparison, distances, temperature_between
from _inf.apps.check.findings import HALF, bounds, findings
from _inf.apps.check.token_rows import read_batch
from inf import ConfigError

NORMAL = np.random.default_rng(0)


def pairs(logits: np.ndarray, other: np.ndarray, temperature: float = 1.0) -> Pairs:
    """Ten tokens after each of a few contexts, by the first logits and by the others."""
    table = torch.log_softmax(torch.tensor(logits), -1).numpy()
    theirs = torch.log_softmax(torch.tensor(other / temperature), -1).numpy()
    contexts, width = logits.shape
    context = np.repeat(np.arange(contexts), 10)
    token = np.tile(np.arange(10), contexts)
    assert width >= 10
    return Pairs(
        row=context,
        position=np.full(len(token), 20),
        token=token,
        context=context,
        rollout=table[context, token],
        reference=theirs[context, token],
        rank=np.zeros(len(token), np.int64),
    )


LOGITS = NORMAL.normal(size=(6, 50)) * 3
SAME = pairs(LOGITS, LOGITS)


@pytest.mark.parametrize("temperature", [0.5, 0.9, 1.0, 1.6])
def test_temperature_is_read_from_log_odds(temperature: float) -> None:
    both = pairs(LOGITS, LOGITS, temperature)
    assert temperature_between(both) == pytest.approx(temperature, abs=1e-6)
    vars(both)["context"] = np.arange(len(both))  # no tokens share a context
    assert temperature_between(both) is None
    other = LOGITS + NORMAL.normal(size=LOGITS.shape)
    assert temperature_between(pairs(LOGITS, other)) is None


def test_token_mult_prob_error_is_nemo_rls() -> None:
    metrics = distances([-1.0, -2.0], [-1.1, -1.8], "group/")
    assert metrics["group/token_mult_prob_error"] == pytest.approx(
        (math.exp(0.1) + math.exp(0.2)) / 2
    )
    assert metrics["group/logprobs_diff_mean"] == pytest.approx(0.15)
    assert metrics["group/logprobs_diff_max"] == pytest.approx(0.2)


@pytest.mark.verl
def test_comparison_has_verls_names_and_its_values() -> None:
    both = pairs(LOGITS, LOGITS, 0.8)
    metrics = comparison(both)
    log_ratio = both.reference - both.rollout
    assert metrics["rollout_corr/kl"] == pytest.approx(-log_ratio.mean(), abs=1e-5)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(
        (np.exp(log_ratio) - log_ratio - 1).mean(), abs=1e-5
    )
    assert metrics["training/rollout_probs_diff_max"] == pytest.approx(
        abs(np.exp(both.reference) - np.exp(both.rollout)).max(), abs=1e-6
    )
    outside = (np.exp(log_ratio) < 0.9) | (np.exp(log_ratio) > 1.1)
    assert metrics["ratio_outside_0.9_1.1"] == outside.mean() > 0
    assert metrics["logprobs_diff_mean/position_16_63"] == metrics["logprobs_diff_mean"]
    assert not [name for name in metrics if "rank" in name], "a trainer's batch has no ranks"


def test_bounds_follow_the_dtype_and_the_caller() -> None:
    assert bounds("float32", None) == {"logprobs_diff_max": 1e-3}
    assert bounds("bfloat16", None) == HALF and HALF["token_mult_prob_error"] == 1.02
    assert bounds("bfloat16", 0.5) == {"logprobs_diff_max": 0.5}


@pytest.mark.parametrize(
    ("metric", "value", "says"),
    [
        ("prefill_decode/logprobs_diff_max", 0.1, "its prefill and its decode"),
        ("alone_in_batch/logprobs_diff_max", 0.1, "the other rows of its batch"),
        ("alone_in_batch/same_tokens", 0.0, "the other rows of its batch"),
        ("update_weights/logprobs_diff_max", 0.1, "an update with the model folder's weights"),
        ("multi_turn/logprobs_diff_max", 0.1, "only conversations of several turns differ"),
        ("logprobs_diff_max", math.nan, ""),
    ],
)
def test_metric_past_its_bound_is_a_finding(metric: str, value: float, says: str) -> None:
    metrics = {"logprobs_diff_max": 0.0, metric: value}
    [finding] = findings(metrics, {"logprobs_diff_max": 1e-3}, SAME, None, "float32")
    assert finding.metric == metric and says in finding.meaning
    assert finding.value == pytest.approx(value, nan_ok=True)


def test_rounding_of_half_precision_is_not_called_a_stale_cache() -> None:
    own = {"logprobs_diff_mean": 0.04, "token_mult_prob_error": 1.04}
    metrics = {f"prefix_reuse/{name}": value for name, value in own.items()}
    [finding] = findings(metrics, HALF, SAME, None, "bfloat16")
    assert finding.meaning.startswith("precision: the rollout differs from itself")
    metrics["prefix_reuse/logprobs_diff_mean"] = 1.5
    [finding] = findings(metrics, HALF, SAME, None, "bfloat16")
    assert finding.meaning.startswith("stale or wrong prefix cache")


def test_padding_and_masked_tokens_of_a_batch_are_left_out() -> None:
    columns = {
        "input_ids": torch.tensor([[0, 5, 6, 7, 8, 9, 0]]),
        "attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 0]]),
        "responses": torch.tensor([[7, 8, 9, 0]]),
        "response_mask": torch.tensor([[1, 0, 1, 0]]),
        "old_log_probs": torch.tensor([[-1.0, 0.0, -2.0, 0.0]]),
    }
    batch = read_batch(SimpleNamespace(batch=columns, non_tensor_batch={}, meta_info={}))
    [row] = batch.rows
    assert (row.ids, row.start, row.mask, row.rollout) == ([5, 6, 7, 8, 9], 2, [1, 0, 1], [])
    rows = [dataclasses.replace(row, rollout=[-0.5, 0.0, -0.25])] * 2
    both = Pairs.of(rows, batch.trainer * 2)
    assert both.row.tolist() == [0, 0, 1, 1] and both.position.tolist() == [2, 4] * 2
    assert both.token.tolist() == [7, 9] * 2 and not both.rank.any()
    assert both.rollout.tolist() == [-0.5, -0.25] * 2 and both.reference.tolist() == [-1, -2] * 2
    assert (both.context[:2] == both.context[2:]).all() and both.context[0] != both.context[1]
    columns["response_mask"] = torch.zeros(1, 4)
    with pytest.raises(ConfigError, match="no token whose response_mask is 1"):
        read_batch(SimpleNamespace(batch=columns, non_tensor_batch={}, meta_info={}))


def test_log_probs_of_a_batch_are_its_own_though_its_first_row_has_no_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = {
        "input_ids": torch.tensor([[5, 6, 0, 0], [5, 6, 7, 8]]),
        "attention_mask": torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]),
        "responses": torch.tensor([[0, 0], [7, 8]]),
        "response_mask": torch.tensor([[0, 0], [1, 1]]),
        "old_log_probs": torch.tensor([[0.0, 0.0], [-1.0, -2.0]]),
        "rollout_log_probs": torch.tensor([[0.0, 0.0], [-3.0, -4.0]]),
    }
    batch = read_batch(SimpleNamespace(batch=columns, non_tensor_batch={}, meta_info={}))
    assert not batch.rows[0].rollout
    computed = [[], [-1.0, -2.0]]  # by the engine: the mismatch would not be seen
    monkeypatch.setattr(engine_rows, "rescored", lambda engine, rows: computed)
    engine: Any = SimpleNamespace(tokenizer=None)
    both, *_ = reference.against_batch(engine, batch)
    assert both.rollout.tolist() == [-3.0, -4.0] and both.reference.tolist() == [-1.0, -2.0]


@pytest.mark.parametrize("name", ["a.safetensors", pytest.param("a.pkl", marks=pytest.mark.verl)])
def test_file_that_was_cut_is_named_with_its_form(name: str, tmp_path: Path) -> None:
    path, column = tmp_path / name, torch.zeros(2, 300)
    if path.suffix == ".pkl":
        from verl import DataProto

        DataProto.from_dict({"input_ids": column}).save_to_disk(path)
    else:
        save_file({"input_ids": column}, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=rf"^against: .*{name} is not a .*file.* write it again"):
        read_batch(path)
    with pytest.raises(ConfigError, match="^against: 3 is neither an engine nor a DataProto"):
        read_batch(3)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("attention_mask", (1, 7)),
        ("old_log_probs", (2, 4)),
        ("response_mask", (1, 3)),
        ("responses", (4,)),
    ],
)
def test_tensors_that_do_not_fit_together_are_named(name: str, shape: tuple[int, ...]) -> None:
    columns = {
        **{each: torch.ones(1, 6) for each in ("input_ids", "attention_mask")},
        **{each: torch.ones(1, 4) for each in ("responses", "response_mask", "old_log_probs")},
        name: torch.ones(shape),
    }
    with pytest.raises(ConfigError, match=rf"^against: {name} has the shape"):
        read_batch(SimpleNamespace(batch=columns, non_tensor_batch={}, meta_info={}))
