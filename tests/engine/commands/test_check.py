"""`inf.check` and `inf check`: the numbers are what they are called, and a right rollout passes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from safetensors.torch import save_file

import inf
from _inf.apps.check.measure import BATCH, PROMPTS
from _inf.runtime.extras import has_verl
from inf import ConfigError
from tests.support.check_references import FEW, trainers_batch


@pytest.fixture(scope="module")
def report(tiny):
    return inf.check(tiny)


@pytest.mark.verl
def test_rollout_that_is_right_passes(report):
    assert report.passed and not report.findings and report.allowed == {"logprobs_diff_max": 1e-3}
    assert 0 < report.metrics["logprobs_diff_mean"] < report.metrics["logprobs_diff_max"] < 1e-3
    assert report.rows == BATCH and report.tokens > 8 * BATCH
    assert (report.device, report.dtype, report.versions["verl"]) == ("cpu", "float32", "0.6.1")
    groups = "prefill_decode prefix_reuse alone_in_batch update_weights multi_turn".split()
    assert all(report.metrics[f"{group}/logprobs_diff_max"] < 1e-3 for group in groups)
    assert report.metrics["alone_in_batch/same_tokens"] == 1
    assert report.metrics["update_weights/cached_tokens"] == 0
    assert report.metrics["training/rollout_actor_probs_pearson_corr"] > 0.999
    assert report.notes == ["multi_turn: scripted: a second user message after the first answer"]


def test_check_leaves_version_and_answers_as_they_were(tiny, hf):
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 16}
    before, version = tiny.generate(list(PROMPTS), **asked), tiny.weight_version
    inf.check(tiny, against=hf, **FEW)
    after = tiny.generate(list(PROMPTS), **asked)
    assert after.token_ids == before.token_ids and tiny.weight_version == version == 0


@pytest.mark.verl
def test_updated_engine_is_compared_with_an_engine_of_its_weights_only(tiny, hf, monkeypatch):
    monkeypatch.setattr(tiny.rollout, "weight_version", 3)
    with pytest.raises(ConfigError, match="^check: .*updated weights"):
        inf.check(tiny)
    said = inf.check(tiny, against=hf, **FEW)
    assert said.passed and "update_weights/logprobs_diff_max" not in said.metrics
    assert "update_weights: not compared: the engine serves updated weights" in said.notes


def test_wrong_calls_are_refused(tiny, tmp_path):
    for name, wrong in (("threshold", -1), ("max_tokens", 0), ("batch", 0)):
        with pytest.raises(ConfigError, match=f"^{name}: expected a number"):
            inf.check(tiny, **{name: wrong})
    if has_verl():
        with pytest.raises(ConfigError, match="^against: the engine must have rollout.name: hf"):
            inf.check(tiny, against=tiny)
    with pytest.raises(ConfigError, match="^against: there is no file"):
        inf.check(tiny, against=tmp_path / "none.pkl", **FEW)


# ── A trainer's batch ────────────────────────────────────────────────────────────────────────────


@pytest.mark.verl
def test_trainers_batch_is_compared_as_an_object_and_as_either_file(tiny, hf, tmp_path):
    batch = trainers_batch(tiny, hf)
    batch.save_to_disk(tmp_path / "batch.pkl")
    save_file(dict(batch.batch.items()), tmp_path / "b.safetensors")
    given = (batch, tmp_path / "batch.pkl", str(tmp_path / "b.safetensors"))
    reports = [inf.check(tiny, against=each, **FEW) for each in given]
    assert all(each.passed for each in reports)
    sampled = int(batch.batch["response_mask"].sum())
    assert {(each.rows, each.tokens) for each in reports} == {(len(batch), sampled)}


@pytest.mark.verl
def test_batch_without_the_rollouts_log_probs_gets_the_engines(tiny, hf):
    batch = trainers_batch(tiny, hf)
    batch.pop(["rollout_log_probs"])
    assert inf.check(tiny, against=batch, **FEW).passed
    batch.meta_info["temperature"] = 0.7
    with pytest.raises(ConfigError, match="temperature 0.7 and no column rollout_log_probs"):
        inf.check(tiny, against=batch, **FEW)
    batch.pop(["old_log_probs"])
    with pytest.raises(ConfigError, match="^against: the batch has no column old_log_probs"):
        inf.check(tiny, against=batch, **FEW)


# ── The command ──────────────────────────────────────────────────────────────────────────────────


CHECK = ("check", "--batch", 2, "--max-tokens", 4)


def test_command_says_it_in_json_and_its_exit_code_is_1_past_the_threshold(
    on_tiny, tmp_path, report
):
    code, out, _ = on_tiny(*CHECK, "--json", "Hi", "Count to ten.")
    said = json.loads(out)
    assert code == 0 and said["passed"] and said["rows"] == 2 and "pairs" not in said
    report.plot().savefig(tmp_path / "check.png")
    code, out, _ = on_tiny(*CHECK, "Hi", "--threshold", 0)
    assert code == 1 and "FAILED" in out and "(allowed: 0)" in out
    assert on_tiny(*CHECK, "--against", tmp_path / "none")[0] == 2
