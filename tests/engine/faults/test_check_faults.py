"""Planted faults: `inf.check` finds each one, and says what it points to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import inf
from _inf.apps.check.report import CheckReport
from _inf.backends.verl.changes import PrefixCache
from _inf.runtime.extras import has_verl
from inf import InferenceEngine
from tests.support.check_references import FEW, trainers_batch
from tests.support.engines import started
from tests.support.tiny import tiny_model


@pytest.fixture
def folder(tmp_path):
    """A copy of the tiny model, to be changed."""
    return Path(shutil.copytree(tiny_model(), tmp_path / "changed"))


def said(report: CheckReport) -> dict[str, str]:
    """The findings' meanings by metric."""
    metrics, apart = report.metrics, abs(report.pairs.difference)
    assert metrics["logprobs_diff_max"] == apart.max() >= metrics["logprobs_diff_mean"]
    outside = ((ratio := np.exp(report.pairs.difference)) < 0.9) | (ratio > 1.1)
    assert metrics["ratio_outside_0.9_1.1"] == pytest.approx(outside.mean())
    if has_verl():  # the estimates of KL(rollout, reference), as verl computes them
        kl = metrics["rollout_corr/kl"]
        assert kl == pytest.approx(-report.pairs.difference.mean(), abs=1e-4)
    assert report.passed == (not report.findings)
    return {finding.metric: finding.meaning for finding in report.findings}


def against(engine: InferenceEngine, folder: Path, **rollout: Any) -> dict[str, str]:
    with started(folder, name="hf", **rollout) as reference:
        return said(inf.check(engine, against=reference, **FEW))


def only(found: dict[str, str], metric: str) -> str:
    assert found.keys() == {metric}, found
    return found[metric]


def test_two_layers_swapped_point_to_the_weights(tiny, folder):
    file = folder / "model.safetensors"
    other = {"model.layers.0.": "model.layers.1.", "model.layers.1.": "model.layers.0."}
    swapped = {
        name.replace(name[:15], other.get(name[:15], name[:15])): tensor
        for name, tensor in load_file(file).items()
    }
    save_file(swapped, file, metadata={"format": "pt"})
    assert only(against(tiny, folder), "logprobs_diff_max").startswith("weights or the model's")


def test_rope_scaling_left_out_points_to_positions(tiny, folder):
    config = json.loads((folder / "config.json").read_text())
    config["rope_scaling"] = {"rope_type": "linear", "factor": 4.0}
    (folder / "config.json").write_text(json.dumps(config))
    assert only(against(tiny, folder), "logprobs_diff_max").startswith("positions or attention")


def test_half_precision_beside_float32_points_to_precision(tiny, folder):
    found = against(tiny, folder, dtype="bfloat16")
    assert only(found, "logprobs_diff_max").startswith("precision")


@pytest.mark.verl
@pytest.mark.parametrize("temperature", [0.7, 1.2])
def test_other_temperature_is_named_with_its_size(tiny, hf, temperature):
    batch = trainers_batch(tiny, hf, trainers_temperature=temperature)
    meaning = only(said(inf.check(tiny, against=batch, **FEW)), "logprobs_diff_max")
    assert meaning.startswith("temperature") and f"{temperature:.2f} times" in meaning


def test_tokenizer_that_merges_otherwise_is_named(tiny, folder):
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:20]
    file.write_text(json.dumps(tokenizer))
    found = against(tiny, folder)
    assert only(found, "prompts/ids_differ").startswith("tokenizer: the reference tokenizes")


def dropping_thoughts(template: str) -> str:
    """As Qwen3's template treats answers that are not the last."""
    kept = "{{ message['content'] }}"
    assert kept in template
    return template.replace(kept, "{{ message['content'].split('</think>')[-1] }}")


def test_template_that_drops_thinking_is_named(tiny, folder):
    file = folder / "chat_template.jinja"
    file.write_text(dropping_thoughts(file.read_text()))
    assert only(against(tiny, folder), "prompts/text_differs").startswith("template")


@pytest.mark.verl
def test_prefixes_cached_before_an_update_are_named(tiny, monkeypatch):
    own = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    new = AutoModelForCausalLM.from_pretrained(tiny_model(seed=1), dtype=torch.float32)

    rollouts_engine = type(tiny.rollout._engine)
    update = rollouts_engine.update_weights_from_tensor

    async def keep_the_cache(*_: Any) -> None:
        pass

    async def update_and_keep_the_cache(self: Any, request: Any) -> Any:
        request.flush_cache = False
        return await update(self, request)

    with started(name="hf") as reference, monkeypatch.context() as patch:
        reference.update_weights(new)
        patch.setattr(PrefixCache, "empty", keep_the_cache)
        patch.setattr(rollouts_engine, "update_weights_from_tensor", update_and_keep_the_cache)
        try:
            found = said(inf.check(tiny, **FEW))
            assert only(found, "update_weights/cached_tokens").startswith("stale prefix cache")
            tiny.update_weights(new)
            found = said(inf.check(tiny, against=reference, **FEW))
        finally:
            patch.undo()
            tiny.update_weights(own, version=0)
    # With overlapped steps a row's first step reads its own keys and values of its prompt's last
    # token, and the later ones those in the cache, which are of the old weights here.
    found.pop("alone_in_batch/logprobs_diff_max", None)
    assert found.keys() == {"logprobs_diff_max", "prefix_reuse/logprobs_diff_max"}
    assert all(meaning.startswith("stale or wrong prefix") for meaning in found.values())
    assert inf.check(tiny, **FEW).passed
