"""`inf eval` with a stub as the engine: what it writes, when an engine starts, and `--log`."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import inf
from _inf.apps.cli import main
from _inf.apps.eval.tracking import global_step
from inf import PromptError
from tests.support.stub_engine import StubEngine

PROBLEMS = Path(inf.__file__).parent / "examples" / "problems.jsonl"
# Without verl, which takes seconds to import.
REWARD = """
def contains(solution_str, ground_truth, **rest):
    return float(ground_truth in solution_str)
"""
ROW = {"prompt": "27 * 2?", "data_source": "x", "reward_model": {"ground_truth": "54"}}
COMMAND = ["eval", "rows.jsonl", "--reward", "reward.py:contains", "--out", "run", "--json"]


class Stub(StubEngine):
    """Answers "#### 54", which is right for the first problem; the second is too long for it."""

    async def answer(self, prompt: list[Any], number: int) -> str:
        if number == 2:
            raise PromptError("prompt 0 has 900 tokens", index=0)
        return "#### 54"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The stub is every command's engine, in a folder of the test's own."""
    monkeypatch.setattr(inf, "InferenceEngine", Stub)
    for count in ("starts", "asked"):
        monkeypatch.setattr(Stub, count, 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    Path("reward.py").write_text(REWARD)
    Path("rows.jsonl").write_text(json.dumps(ROW) + "\n")


def test_question_without_an_answer_is_counted_and_asked_again_and_then_no_engine_starts(
    capfd: pytest.CaptureFixture[str],
) -> None:
    command = ["eval", "gsm8k", "--data", str(PROBLEMS), "--limit", "3", "--json"]
    command += ["--reward", "reward.py:contains"]
    assert main(command) == 1
    out, err = capfd.readouterr()
    found = json.loads(out)
    assert (found["answers"], found["unscored"]) == (3, 1)
    assert found["metrics"]["val-core/openai/gsm8k/reward/mean@1"] == 0.5  # of those it answered
    assert '1 answers have no reward: "error" in their rows' in err
    rows = [json.loads(line) for line in Path("gsm8k.jsonl").read_text().splitlines()]
    places = [(row["line"], row["number"], row["sample"]) for row in rows]
    assert places == [(1, 0, 0), (2, 1, 0), (3, 2, 0)]
    assert rows[1]["prompt"][0]["role"] == "user" and rows[1]["reward"] is None
    assert rows[1]["row_id"] == "1.0"
    assert rows[1]["error"]["message"] == "the prompt has 900 tokens"

    assert main(command) == 0 and Stub.starts == 2
    assert json.loads(capfd.readouterr().out)["unscored"] == 0
    assert main(command) == 0 and main([*command, "--limit", "2"]) == 0
    assert Stub.starts == 2
    assert not Path("tensorboard_log").exists()  # nothing is logged unless it is asked


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rows.jsonl", "--tool"], "--tool: it is an option of gsm8k, not of rows.jsonl"),
        (["rows.jsonl", "--data", "a.jsonl"], "--data: it is an option of gsm8k, math500"),
        (["gsm8k", "--tool", "--agent-loop", "a"], "--tool: an agent loop has its own tools"),
        (["gsm8k", "--data-seed", "0"], "--data-seed: it is an option of rg:NAME"),
        (["rows.jsonl", "--out", "./rows.jsonl"], "rows.jsonl: it is also an input, rows.jsonl;"),
        (
            ["rg:chain_sum"],
            "rg:chain_sum: reasoning-gym is not installed: pip install 'inf-engine[",
        ),
        (["rows.jsonl", "--log", "wandbb"], "'wandbb' is none of wandb, mlflow, trackio, tensorb"),
        (
            ["rows.jsonl", "--log", "mlflow"],
            "the package mlflow is not installed: pip install mlfl",
        ),
    ],
)
@pytest.mark.verl
def test_what_cannot_be_run_is_one_sentence_before_anything_is_written(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    find_spec, missing = importlib.util.find_spec, ("mlflow", "reasoning_gym")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda *name: None if name[0] in missing else find_spec(*name)
    )
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    assert main(["eval", "--reward", "reward.py:contains", "--restart", *arguments]) == 2
    err = capfd.readouterr().err
    assert said in err and err.count("\n") == 1 and Stub.starts == 0
    assert sorted(path.name for path in Path().iterdir()) == ["reward.py", "rows.jsonl"]
    assert json.loads(Path("rows.jsonl").read_text()) == ROW


@pytest.mark.verl
def test_metrics_are_in_tensorboards_file_under_their_names(
    capfd: pytest.CaptureFixture[str],
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main([*COMMAND, "--log", "tensorboard"]) == 0
    found = json.loads(capfd.readouterr().out)  # verl's messages are not on stdout
    events = EventAccumulator("tensorboard_log/inf-eval/run")
    events.Reload()
    logged = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    assert {name: [(e.step, e.value) for e in each] for name, each in logged.items()} == {
        name: [(0, pytest.approx(value))] for name, value in found["metrics"].items()
    }
    assert "val-core/x/reward/mean@1" in logged
    for path, step in {
        "run1/global_step_60": 60,
        "global_step_5/actor": 5,
        "Qwen/Qwen3": 0,
    }.items():
        assert global_step(path) == step


@pytest.mark.verl
def test_tracker_that_fails_leaves_the_summary_and_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise ValueError("no key")

    monkeypatch.setattr("verl.utils.tracking.Tracking", fails)
    assert main([*COMMAND, "--log", "wandb"]) == 1
    assert "log: wandb took no metrics: ValueError: no key" in capsys.readouterr().err
    assert Path("run.summary.json").exists()
