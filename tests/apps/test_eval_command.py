"""`inf eval gsm8k` with a stub as the engine: what it writes, and when an engine starts."""

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
    Path("reward.py").write_text(REWARD)


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
    "option",
    [
        ["--shots", "2"],
        ["--tool"],
        ["--data", "a.jsonl"],
        ["--size", "2"],
        ["--data-seed", "0"],
    ],
)
def test_option_of_a_benchmark_is_refused_for_a_file(
    option: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "rows.jsonl", *option]) == 2
    assert f"{option[0]}: it is an option of" in capfd.readouterr().err


@pytest.mark.parametrize("out", [[], ["--out", "./eval.jsonl"]])
def test_data_are_never_the_file_of_answers(
    out: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    row = {"prompt": "1 + 1", "data_source": "x", "reward_model": {"ground_truth": "2"}}
    Path("eval.jsonl").write_text(json.dumps(row) + "\n")
    command = ["eval", "eval.jsonl", "--reward", "reward.py:contains", "--restart", *out]
    assert main(command) == 2
    assert "out: eval.jsonl: it is also an input, eval.jsonl;" in capfd.readouterr().err
    assert json.loads(Path("eval.jsonl").read_text()) == row and Stub.starts == 0


def test_task_of_reasoning_gym_without_the_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)  # where it is installed too
    assert main(["eval", "rg:chain_sum"]) == 2
    said = "rg:chain_sum: reasoning-gym is not installed: pip install 'inf-engine[reasoning-gym]'"
    assert said in capfd.readouterr().err
    assert main(["eval", "rg:chain_sum", "--data", "a.jsonl"]) == 2
    assert "--data: it is an option of gsm8k" in capfd.readouterr().err
    assert Stub.starts == 0


def test_help_of_the_command_has_its_options_and_its_benchmarks(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["eval", "--help"]) == 0
    said = capfd.readouterr().out
    assert all(
        word in said for word in ("--reward-workers", "--rescore", "gsm8k", "rg:NAME", "compare")
    )


# ── Trackers: `--log`, through verl's own `Tracking` ──

ROW = {
    "prompt": "How much is 27 * 2?",
    "data_source": "openai/gsm8k",
    "reward_model": {"ground_truth": "54"},
}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """`inf eval` on a row of its own."""
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    Path("rows.jsonl").write_text(json.dumps(ROW) + "\n")
    return ["eval", "rows.jsonl", "--reward", "reward.py:contains", "--out", "run", "--json"]


@pytest.mark.verl
def test_metrics_are_in_tensorboards_file_under_their_names(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main([*command, "--log", "tensorboard"]) == 0
    found = json.loads(capfd.readouterr().out)  # verl's messages are not on stdout
    events = EventAccumulator("tensorboard_log/inf-eval/run")
    events.Reload()
    logged = {name: events.Scalars(name) for name in events.Tags()["scalars"]}
    assert {name: [(e.step, e.value) for e in each] for name, each in logged.items()} == {
        name: [(0, pytest.approx(value))] for name, value in found["metrics"].items()
    }
    assert "val-core/openai/gsm8k/reward/mean@1" in logged


@pytest.mark.verl
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


@pytest.mark.verl
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
