"""Metrics and findings of a check, from numbers alone."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from _inf.apps.check import comparisons
from _inf.apps.check.differences import Pairs, distances
from _inf.apps.check.findings import HALF, findings
from _inf.apps.check.token_rows import TokenRow, read_batch
from inf import ConfigError

SAME = Pairs(*np.zeros((6, 10)))


def test_token_mult_prob_error_is_nemo_rls():
    metrics = distances([-1.0, -2.0], [-1.1, -1.8], "group/")
    assert metrics["group/token_mult_prob_error"] == pytest.approx(
        (math.exp(0.1) + math.exp(0.2)) / 2
    )
    assert metrics["group/logprobs_diff_mean"] == pytest.approx(0.15)
    assert metrics["group/logprobs_diff_max"] == pytest.approx(0.2)


def test_metric_past_its_bound_is_a_finding():
    for metric, value, says in (
        ("prefill_decode/logprobs_diff_max", 0.1, "its prefill and its decode"),
        ("alone_in_batch/logprobs_diff_max", 0.1, "the other rows of its batch"),
        ("alone_in_batch/same_tokens", 0.0, "the other rows of its batch"),
        ("update_weights/logprobs_diff_max", 0.1, "an update with the model folder's weights"),
        ("multi_turn/logprobs_diff_max", 0.1, "only conversations of several turns differ"),
        ("logprobs_diff_max", math.nan, ""),
    ):
        metrics = {"logprobs_diff_max": 0.0, metric: value}
        [finding] = findings(metrics, {"logprobs_diff_max": 1e-3}, SAME, None, "float32")
        assert finding.metric == metric and says in finding.meaning
        assert finding.value == pytest.approx(value, nan_ok=True)


def test_rounding_of_half_precision_is_not_called_a_stale_cache():
    own = {"logprobs_diff_mean": 0.04, "token_mult_prob_error": 1.04}
    metrics = {f"prefix_reuse/{name}": value for name, value in own.items()}
    [finding] = findings(metrics, HALF, SAME, None, "bfloat16")
    assert finding.meaning.startswith("precision: the rollout differs from itself")
    metrics["prefix_reuse/logprobs_diff_mean"] = 1.5
    [finding] = findings(metrics, HALF, SAME, None, "bfloat16")
    assert finding.meaning.startswith("stale or wrong prefix cache")


def batch_of(columns: dict[str, list[list[float]]]) -> Any:
    tensors = {name: torch.tensor(rows) for name, rows in columns.items()}
    return SimpleNamespace(batch=tensors, non_tensor_batch={}, meta_info={})


def test_padding_and_masked_tokens_of_a_batch_are_left_out():
    """Also if the first row has no response, and so no log probs."""
    columns = {
        "input_ids": [[5, 6, 0, 0, 0, 0], [0, 5, 6, 7, 8, 9]],
        "attention_mask": [[1, 1, 0, 0, 0, 0], [0, 1, 1, 1, 1, 1]],
        "responses": [[0, 0, 0], [7, 8, 9]],
        "response_mask": [[0, 0, 0], [1, 0, 1]],
        "old_log_probs": [[0.0, 0.0, 0.0], [-1.0, 0.0, -2.0]],
        "rollout_log_probs": [[0.0, 0.0, 0.0], [-3.0, 0.0, -4.0]],
    }
    row = TokenRow.of(read_batch(batch_of(columns))[1])
    assert (row.ids, row.start, row.mask) == ([5, 6, 7, 8, 9], 2, [1, 0, 1])
    both = comparisons.against_batch(SimpleNamespace(tokenizer=None), read_batch(batch_of(columns)))
    both = both.pairs
    assert both.rollout.tolist() == [-3.0, -4.0] and both.reference.tolist() == [-1.0, -2.0]
    assert (both.row.tolist(), both.position.tolist()) == ([1, 1], [2, 4])
    assert both.token.tolist() == [7, 9] and both.context[0] != both.context[1]
    columns["response_mask"] = [[0, 0, 0]] * 2
    with pytest.raises(ConfigError, match="no token whose response_mask is 1"):
        read_batch(batch_of(columns))


@pytest.mark.parametrize("name", ["a.safetensors", pytest.param("a.pkl", marks=pytest.mark.verl)])
def test_file_that_was_cut_is_named_with_its_form(name):
    path, column = Path(name), torch.zeros(2, 300)
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


def test_tensors_that_do_not_fit_together_are_named():
    for name, shape in (("attention_mask", (1, 7)), ("old_log_probs", (2, 4)), ("responses", (4,))):
        batch = batch_of(dict.fromkeys(("input_ids", "attention_mask"), [[1.0] * 6]))
        answers = ("responses", "response_mask", "old_log_probs")
        batch.batch |= dict.fromkeys(answers, torch.ones(1, 4)) | {name: torch.ones(shape)}
        with pytest.raises(ConfigError, match=rf"^against: {name} has the shape"):
            read_batch(batch)
