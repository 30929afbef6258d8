"""`--log`: an evaluation's metrics in an experiment tracker, through verl's own `Tracking`."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_eval_command import REWARD, Stub

import inf
from _inf.apps.cli import main
from _inf.apps.eval.tracking import global_step

ROW = {
    "prompt": "How much is 27 * 2?",
    "data_source": "openai/gsm8k",
    "reward_model": {"ground_truth": "54"},
}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """`inf eval` on a stub, in a folder of its own."""
    monkeypatch.setattr(inf, "InferenceEngine", Stub)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    Path("rows.jsonl").write_text(json.dumps(ROW) + "\n")
    Path("reward.py").write_text(REWARD)
    return ["eval", "rows.jsonl", "--reward", "reward.py:contains", "--out", "run", "--json"]


def test_metrics_are_in_tensorboards_file_under_their_names(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--log", "tensorboard"]) == 0
    found = json.loads(capfd.readouterr().out)  # verl's messages are not on stdout
    events = EventAccumulator("tensorboard_log/inf-eval/run")
    events.Reload()
    logged = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    assert {name: [(e.step, e.value) for e in each] for name, each in logged.items()} == {
        name: [(0, pytest.approx(value))] for name, value in found["metrics"].items()
    }
    assert "val-core/openai/gsm8k/reward/mean@1" in logged


def test_nothing_is_logged_unless_it_is_asked(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("it was logged")

    monkeypatch.setattr("verl.utils.tracking.Tracking", sent)
    assert main(command) == 0
    assert not Path("tensorboard_log").exists()


@pytest.mark.parametrize(
    ("tracker", "said"),
    [
        ("mlflow", "inf: log: the package mlflow is not installed: pip install mlflow"),
        ("wandbb", "inf: log: 'wandbb' is none of wandb, mlflow, trackio, tensorboard"),
    ],
)
def test_tracker_that_is_missing_is_one_sentence_before_anything_is_asked(
    command: list[str],
    tracker: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "mlflow" else find_spec(name)
    )
    assert main([*command, "--log", tracker]) == 2
    err = capsys.readouterr().err
    assert err.startswith(said) and err.count("\n") == 1
    assert not Path("run.jsonl").exists()


def test_tracker_that_fails_leaves_the_summary_and_says_what_to_do(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no key")

    monkeypatch.setattr("verl.utils.tracking.Tracking", fails)
    assert main([*command, "--log", "wandb"]) == 1
    assert "log: wandb took no metrics: ValueError: no key" in capsys.readouterr().err
    assert Path("run.summary.json").exists()


def test_step_is_that_of_verls_checkpoint() -> None:
    assert global_step("checkpoints/gsm8k/run1/global_step_60") == 60
    assert global_step("checkpoints/global_step_5/actor") == 5
    assert global_step("Qwen/Qwen3-0.6B") == global_step(None) == 0
