"""`inf check`: it passes where the rollout is right, and fails where it is not."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest
from tiny import tiny_model

import inf
from _inf.apps.check import MAX_TOKENS, PROMPTS, CheckReport, measure
from _inf.apps.cli import main
from inf import ConfigError, InferenceEngine


def shown(report: CheckReport) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(report.table())
    return capture.get()


def test_rollout_that_is_right_passes(tiny: InferenceEngine) -> None:
    report = measure(tiny)
    assert report.passed and report.allowed_logprob_difference == 1e-3
    assert 0 <= report.mean_logprob_difference <= report.max_logprob_difference < 1e-3
    assert 0.95 * report.tokens < report.same_greedy_tokens <= report.tokens
    assert report.prompts == len(PROMPTS) and 0 < report.tokens <= MAX_TOKENS * len(PROMPTS)
    assert (report.device, report.dtype) == ("cpu", "float32")
    assert report.versions["verl"] == "0.6.1"
    assert json.loads(json.dumps(dataclasses.asdict(report)))["passed"] is True
    said = " ".join(shown(report).split())
    assert "result │ passed" in said and "nats (allowed: 0.001)" in said
    assert f"{report.same_greedy_tokens} of {report.tokens} (" in said


def test_rollout_of_other_weights_fails_and_the_first_token_that_differs_is_named(
    tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["What is 2 + 2?", "Paris"]
    right = measure(tiny, asked)
    monkeypatch.setattr(tiny.model_config, "local_path", str(tiny_model(seed=1)))
    report = measure(tiny, asked)
    assert right.passed and not report.passed
    assert report.max_logprob_difference > 0.1
    assert report.same_greedy_tokens < 0.9 * report.tokens
    other = report.first_different_token
    assert other is not None and other.prompt == 0 and other.logprob_gap > 0
    assert other.rollout != other.transformers
    assert "FAILED" in shown(report) and f"prompt 0, token {other.position}" in shown(report)


def test_threshold_is_the_callers(tiny: InferenceEngine) -> None:
    assert not measure(tiny, ["Hi"], threshold=0.0).passed
    assert measure(tiny, ["Hi"], threshold=1e9).passed
    with pytest.raises(ConfigError, match="^threshold: .* got -1"):
        measure(tiny, ["Hi"], threshold=-1)


def test_updated_engine_is_not_compared_with_its_folder(
    tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny.rollout, "weight_version", 3)
    with pytest.raises(ConfigError, match="^check: .*updated weights"):
        measure(tiny)


@pytest.fixture
def command_on(tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> InferenceEngine:
    """The command finds this engine running."""
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(tiny))
    return tiny


def test_command_says_it_in_json_and_exits_with_0(
    command_on: InferenceEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--json", "Hi", "Count to ten."]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["passed"] and said["prompts"] == 2 and said["first_different_token"] is None


def test_command_beyond_its_threshold_exits_with_1_and_a_wrong_one_with_2(
    command_on: InferenceEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "Hi", "--threshold", "0"]) == 1
    assert "FAILED" in capsys.readouterr().out
    assert main(["check", "--threshold", "-1"]) == 2
