"""What an evaluation keeps of an earlier run, with a stub as the engine: answers always, rewards of
the same function only."""

from __future__ import annotations

import asyncio
import json
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import inf
from _inf.apps import tally
from _inf.apps.cli import main
from inf import ConfigError, EngineDeadError
from tests.support.json_lines import read
from tests.support.stub_engine import StubEngine

ROWS = [{"prompt": f"Count from {i}.", "data_source": "own"} for i in range(4)]
Eval = Callable[..., tuple[int, str, str]]


class Stub(StubEngine):
    """Answers each prompt with its number of this process; every answer is cut."""

    finish_reason = "length"
    wait: Callable[[int], bool] | None = None  # for the answer with this number

    async def answer(self, prompt: Any, number: int) -> str:
        while Stub.wait and Stub.wait(number):
            await asyncio.sleep(0.01)
        return f"answer {number}"


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(inf, "InferenceEngine", Stub)
    monkeypatch.setattr(Stub, "asked", 0)
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    yield


@pytest.fixture
def evaluate(capfd: pytest.CaptureFixture[str]) -> Eval:
    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        command = ["eval", "rows.jsonl", "--reward", "reward.py", *arguments]
        return (main(command), *capfd.readouterr())

    return run


def rows() -> list[dict[str, Any]]:
    return read(Path("eval.jsonl"))


def reward_file(body: str, name: str = "reward.py") -> None:
    text = "def compute_score(solution_str, ground_truth, extra_info, data_source):\n"
    Path(name).write_text(text + textwrap.indent(textwrap.dedent(body), "    "))


# ─── The command ───


def test_edited_reward_file_scores_the_stored_answers_again_and_says_so(evaluate: Eval) -> None:
    reward_file("print('scoring')\nreturn 1.0")
    code, out, err = evaluate()
    assert code == 0 and "scoring" in err and "scoring" not in out
    first = rows()
    code, _, err = evaluate()
    assert code == 0 and "resumed 4 of 4 answers, 4 with their rewards" in err
    assert rows() == first
    reward_file("return 0.25")
    code, _, err = evaluate()
    assert code == 0 and Stub.asked == 4
    assert "0 with their rewards; 4 are scored again: their rewards are of another version" in err
    assert [row["reward"] for row in rows()] == [0.25] * 4
    assert [row["completion"] for row in rows()] == [row["completion"] for row in first]
    about = json.loads(Path("eval.summary.json").read_text())
    assert (about["answers_kept"], about["rewards_kept"]) == (4, 0)


def test_rescore_computes_rewards_again_and_keeps_the_answers(evaluate: Eval) -> None:
    Path("value.txt").write_text("1")  # which no version knows
    reward_file("return float(open('value.txt').read())")
    evaluate()
    Path("value.txt").write_text("0.5")
    _, _, err = evaluate("--rescore")
    assert {row["reward"] for row in rows()} == {0.5} and Stub.asked == 4
    assert "4 are scored again: --rescore" in err


def test_answers_whose_reward_failed_are_only_scored_again(evaluate: Eval) -> None:
    reward_file("raise KeyError(solution_str)")
    code, out, err = evaluate()
    assert code == 1 and "4 answers, 4 without a reward" in out
    assert out.startswith("none of 4 answers has a reward, 4 cut by max_tokens (")
    assert {row["error"]["code"] for row in rows()} == {"reward_error"}
    reward_file("return 1.0")
    assert evaluate()[0] == 0 and Stub.asked == 4
    assert all("error" not in row and row["reward"] == 1.0 for row in rows())


def test_aborted_answers_are_not_scored_and_are_asked_again(
    evaluate: Eval, monkeypatch: pytest.MonkeyPatch
) -> None:
    reward_file("return 1.0")
    with monkeypatch.context() as aborting:
        aborting.setattr(Stub, "finish_reason", "abort")
        code, _, err = evaluate()
    assert code == 1 and f"{len(ROWS)} answers have no reward" in err
    assert {(row["reward"], row["error"]["code"]) for row in rows()} == {(None, "aborted")}
    code, _, err = evaluate()
    assert code == 0 and Stub.asked == 2 * len(ROWS)
    assert [row["reward"] for row in rows()] == [1.0] * len(ROWS)


def test_stopped_run_scores_the_answers_that_it_has_and_asks_for_the_others(
    evaluate: Eval,
) -> None:
    reward_file("return 1.0")
    evaluate()
    first, second, *_ = rows()
    for name in ("reward_extra", "scored_by"):
        del second[name]
    second["reward"] = None  # stopped between the answer and its reward
    Path("eval.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    code, _, err = evaluate()
    assert code == 0 and Stub.asked == 6
    assert "resumed 2 of 4 answers, 1 with their rewards" in err
    found = rows()
    assert [row["line"] for row in found] == [1, 2, 3, 4] and found[0] == first
    assert found[1]["completion"] == second["completion"] and found[1]["reward"] == 1.0


def test_dead_engine_leaves_its_answers_to_be_scored(
    evaluate: Eval, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(number: int) -> bool:
        if number == 3:
            raise EngineDeadError("the scheduler died")
        return number == 4  # for ever

    reward_file("return 1.0")
    monkeypatch.setattr(Stub, "wait", dies)
    code, _, err = evaluate()
    assert code == 1 and "the scheduler died" in err
    assert [row["line"] for row in rows()][:2] == [1, 2]
    monkeypatch.setattr(Stub, "wait", None)
    assert evaluate()[0] == 0 and Stub.asked == 6


def test_answers_are_scored_while_others_are_being_generated_and_progress_is_said(
    evaluate: Eval, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tally, "SAY_SECONDS", 0.0)
    reward_file("open('scored', 'w').close()\nreturn 1.0")
    late = lambda number: number > 1 and not Path("scored").exists()  # noqa: E731
    monkeypatch.setattr(Stub, "wait", late)
    code, _, err = evaluate()
    assert code == 0 and len(rows()) == 4
    assert "inf: 4 of 4 scored, 4 answered" in err


# ─── In Python ───


def of_function(reward: Any, **more: Any) -> Any:
    return inf.evaluate(Stub(), ROWS, reward=reward, out="run", **more)  # type: ignore[arg-type]


def test_functions_with_one_name_do_not_take_each_others_rewards() -> None:
    assert {row["reward"] for row in of_function(lambda **rest: 1.0).rows} == {1.0}
    with pytest.warns(UserWarning, match="scored again: .*another version of .*<lambda>"):
        report = of_function(lambda **rest: 0.5)
    assert {row["reward"] for row in report.rows} == {0.5} and Stub.asked == 4
    assert (report.answers_kept, report.rewards_kept) == (4, 0)
    assert of_function(lambda **rest: 0.5).rewards_kept == 4


def test_reward_with_an_object_of_its_caller_runs_there_and_is_always_scored_again() -> None:
    client = threading.Lock()

    def judge(**rest: Any) -> float:
        return 1.0 if client else 0.0

    with pytest.raises(ConfigError, match="It uses client"):
        of_function(judge)
    assert of_function(judge, reward_workers=0).metrics and Stub.asked == 4
    with pytest.warns(UserWarning, match="uses client .*of which nobody can say"):
        report = of_function(judge, reward_workers=0)
    assert (report.answers_kept, report.rewards_kept, Stub.asked) == (4, 0, 4)


# ─── Files that only the reward's process knows ───

HOW = {
    "sys.path": "import sys\nsys.path.insert(0, {folder!r})\nimport reward_helper as helper",
    "importlib": (
        "import importlib, sys\nsys.path.insert(0, {folder!r})\n"
        "helper = importlib.import_module('reward_' + 'helper')"
    ),
    "a path": (
        "import importlib.util as u\nspec = u.spec_from_file_location('h', {folder!r} + "
        "'/reward_helper.py')\nhelper = u.module_from_spec(spec)\nspec.loader.exec_module(helper)"
    ),
}


@pytest.mark.parametrize(
    ("how", "late"), [("sys.path", False), ("importlib", True), ("a path", False)]
)
def test_changed_file_that_a_reward_loads_in_any_way_scores_again(
    how: str, late: bool, evaluate: Eval
) -> None:
    Path("rules").mkdir()
    helper = Path("rules", "reward_helper.py")
    helper.write_text("from reward_words import X\n" if how != "a path" else "X = 1.0\n")
    Path("rules", "reward_words.py").write_text("X = 1.0\n")
    loads = HOW[how].format(folder=str(helper.parent.resolve()))
    if late:
        reward_file(f"{loads}\nreturn helper.X")
    else:
        reward_file("return helper.X")
        Path("reward.py").write_text(f"{loads}\n{Path('reward.py').read_text()}")
    assert evaluate()[0] == 0
    first, about = rows(), json.loads(Path("eval.summary.json").read_text())
    files = [helper] if how == "a path" else [helper, helper.with_name("reward_words.py")]
    names = [str(file.resolve()) for file in files]  # without those that reward.py's text names
    assert all(row["scored_by_files"] == names for row in first)
    helper.write_text(f"{helper.read_text()}# a comment\n")
    assert "4 with their rewards" in evaluate()[2] and rows() == first
    Path(names[-1]).write_text("X = 0.25\n")
    assert "0 with their rewards; 4 are scored again" in evaluate()[2]
    assert [row["reward"] for row in rows()] == [0.25] * 4 and Stub.asked == 4
    version = json.loads(Path("eval.summary.json").read_text())["reward_version"]
    assert version != about["reward_version"]
