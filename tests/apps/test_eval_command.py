"""`inf eval` with a stub as the engine: what it writes, when an engine starts, and what it keeps
of an earlier run: answers always, rewards of the same function only."""

from __future__ import annotations

import asyncio
import functools
import json
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inf
from _inf.apps import tally
from inf import ConfigError, EngineDeadError, PromptError
from tests.support.json_lines import read, write
from tests.support.stub_engine import StubEngine

PROBLEMS = Path(inf.__file__).parent / "examples" / "problems.jsonl"
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
def _fresh(monkeypatch):
    monkeypatch.setattr(inf, "InferenceEngine", Stub)
    for count in ("starts", "asked"):
        monkeypatch.setattr(Stub, count, 0)
    reward_file("return 1.0")
    write(Path("rows.jsonl"), ROWS)


@pytest.fixture
def evaluate(command):
    return functools.partial(
        command, "eval", "rows.jsonl", "--reward", "reward.py", "--reward-workers", 1
    )


def rows() -> list[dict[str, Any]]:
    return read(Path("eval.jsonl"))


def goes_on(evaluate: Eval, asked: int) -> str:
    """A run with another reward file asks so many, and then all are scored; what it says."""
    reward_file("return 1.0")
    code, _, err = evaluate()
    assert (code, Stub.asked) == (0, asked)
    assert [(row["reward"], "error" in row) for row in rows()] == [(1.0, False)] * len(ROWS)
    return err


def reward_file(body: str, before: str = "") -> None:
    head = f"{before}def compute_score(solution_str, ground_truth, extra_info, data_source):\n"
    Path("reward.py").write_text(head + textwrap.indent(body, "    "))


# ─── The command ───


def test_question_without_an_answer_is_counted_and_asked_again_and_then_no_engine_starts(
    command, monkeypatch
):
    async def answer(self: Stub, prompt: Any, number: int) -> str:
        if number == 2:
            raise PromptError("prompt 0 has 900 tokens", index=0)
        return "#### 54"

    monkeypatch.setattr(Stub, "answer", answer)
    reward_file("return float(ground_truth in solution_str)")  # right for the first problem
    asked = ("eval", "gsm8k", "--data", PROBLEMS, "--reward", "reward.py", "--json", "--limit")
    code, out, err = command(*asked, 3)
    found = json.loads(out)
    assert (code, found["answers"], found["unscored"]) == (1, 3, 1)
    assert found["metrics"]["val-core/openai/gsm8k/reward/mean@1"] == 0.5  # of those it answered
    assert '1 answers have no reward: "error" in their rows' in err
    written = read(Path("gsm8k.jsonl"))
    assert [row["row_id"] for row in written] == ["0.0", "1.0", "2.0"]
    assert written[1]["error"]["message"] == "the prompt has 900 tokens"
    code, out, _ = command(*asked, 3)
    assert (code, json.loads(out)["unscored"], Stub.starts) == (0, 0, 2)
    assert [command(*asked, limit)[0] for limit in (3, 2)] == [0, 0] and Stub.starts == 2


def test_what_cannot_be_run_is_one_sentence_before_anything_is_written(monkeypatch, command):
    monkeypatch.setattr("_inf.runtime.extras.has", lambda extra: extra != "reasoning-gym")
    for words, said in (
        ("rows.jsonl --data a.jsonl", "--data: it is an option of gsm8k, math500"),
        ("gsm8k --data-seed 0", "--data-seed: it is an option of rg:NAME"),
        ("rg:chain_sum", "reasoning-gym is not installed: pip install 'inf-engine["),
    ):
        code, _, err = command("eval", "--reward", "reward.py", "--restart", *words.split())
        assert (code, err.count("\n"), Stub.starts) == (2, 1, 0) and said in err
        assert sorted(path.name for path in Path().iterdir()) == ["reward.py", "rows.jsonl"]
    assert read(Path("rows.jsonl")) == ROWS


# ─── What is kept ───


def test_edited_reward_file_scores_the_stored_answers_again_and_so_does_rescore(evaluate):
    reward_file("print('scoring')\nreturn 1.0")
    code, out, err = evaluate()
    assert code == 0 and "scoring" in err and "scoring" not in out
    first = rows()
    code, _, err = evaluate()
    assert code == 0 and "resumed 4 of 4 answers, 4 with their rewards" in err
    assert rows() == first
    Path("value.txt").write_text("0.25")  # which no version knows
    reward_file("return float(open('value.txt').read())")
    code, _, err = evaluate()
    assert code == 0 and Stub.asked == 4
    assert (
        "0 with their rewards; 4 are scored again: their rewards come from another version" in err
    )
    assert [row["reward"] for row in rows()] == [0.25] * 4
    assert [row["completion"] for row in rows()] == [row["completion"] for row in first]
    about = json.loads(Path("eval.summary.json").read_text())
    assert (about["answers_kept"], about["rewards_kept"]) == (4, 0)
    Path("value.txt").write_text("0.5")
    _, _, err = evaluate("--rescore")
    assert {row["reward"] for row in rows()} == {0.5} and Stub.asked == 4
    assert "4 are scored again: --rescore" in err


def test_answers_whose_reward_failed_are_only_scored_again(evaluate):
    reward_file("raise KeyError(solution_str)")
    code, out, err = evaluate()
    assert code == 1 and "4 answers, 4 without a reward" in out
    assert out.startswith("none of 4 answers has a reward, 4 cut by max_tokens (")
    assert {row["error"]["code"] for row in rows()} == {"reward_error"}
    goes_on(evaluate, 4)


def test_stopped_run_scores_the_answers_that_it_has_and_asks_for_the_others(evaluate):
    evaluate()
    first, second, *_ = rows()
    for name in ("reward_extra", "scored_by"):
        del second[name]
    second["reward"] = None  # stopped between the answer and its reward
    write(Path("eval.jsonl"), [first, second])
    assert "resumed 2 of 4 answers, 1 with their rewards" in goes_on(evaluate, 6)
    found = rows()
    assert [row["line"] for row in found] == [1, 2, 3, 4] and found[0] == first
    assert found[1]["completion"] == second["completion"]


def test_dead_engine_ends_the_run_and_leaves_its_answers(evaluate, monkeypatch):
    def dies(number: int) -> bool:
        if number == 3:
            raise EngineDeadError("the scheduler died")
        return False

    monkeypatch.setattr(Stub, "wait", dies)
    code, _, err = evaluate()
    assert code == 1 and "the scheduler died" in err
    assert [row["line"] for row in rows()][:2] == [1, 2]


def test_answers_are_scored_while_others_are_being_generated_and_progress_is_said(
    evaluate, monkeypatch
):
    monkeypatch.setattr(tally, "SAY_SECONDS", 0.0)
    reward_file("open('scored', 'w').close()\nreturn 1.0")
    late = lambda number: number > 1 and not Path("scored").exists()  # noqa: E731
    monkeypatch.setattr(Stub, "wait", late)
    code, _, err = evaluate()
    assert code == 0 and len(rows()) == 4
    assert "inf: 4 of 4 scored, 4 answered" in err


# ─── In Python ───


def test_reward_with_an_object_of_its_caller_runs_there_and_is_always_scored_again():
    client = threading.Lock()

    def judge(**rest: Any) -> float:
        return 1.0 if client else 0.0

    def evaluated(reward: Any = judge, **how: Any) -> Any:
        return inf.evaluate(Stub(), ROWS, reward=reward, out="run", **how)

    said = r"<locals>.judge .*cannot pickle .*inside of the function.*reward_workers=0"
    with pytest.raises(ConfigError, match=said):
        evaluated()
    assert evaluated(reward_workers=0).metrics and Stub.asked == 4
    with pytest.warns(UserWarning, match="scored again: it is not known .*cannot pickle"):
        report = evaluated(reward_workers=0)
    assert (report.answers_kept, report.rewards_kept, Stub.asked) == (4, 0, 4)
    assert [evaluated(lambda **rest: 0.5).rewards_kept for _ in range(2)] == [0, 4]


# ─── Files that only the reward's process knows ───

# In a folder of the path, by a name that is computed when it is called, and by a path.
IMPORTS = "import sys\nsys.path.insert(0, 'rules')\nimport reward_helper as helper\n"
NAMES = (
    "import importlib, sys\nsys.path.insert(0, 'rules')\n"
    "helper = importlib.import_module('reward_' + 'helper')\n"
)
LOADS = (
    "import importlib.util as u\nspec = u.spec_from_file_location('h', 'rules/reward_helper.py')\n"
    "helper = u.module_from_spec(spec)\nspec.loader.exec_module(helper)\n"
)


@pytest.mark.parametrize(
    ("before", "inside", "others"), [(IMPORTS, "", 1), ("", NAMES, 1), (LOADS, "", 0)]
)
def test_changed_file_that_a_reward_loads_in_any_way_scores_again(before, inside, others, evaluate):
    Path("rules").mkdir()
    helper = Path("rules/reward_helper.py").resolve()
    helper.write_text("from reward_words import X\n" if others else "X = 1.0\n")
    helper.with_name("reward_words.py").write_text("X = 1.0\n")
    reward_file(f"{inside}return helper.X", before)
    assert evaluate()[0] == 0
    first, about = rows(), json.loads(Path("eval.summary.json").read_text())
    files = [helper, *[helper.with_name("reward_words.py")] * others]
    names = [*map(str, files)]  # without those that reward.py's text names
    assert all(row["scored_by_files"] == names for row in first)
    helper.write_text(f"{helper.read_text()}# a comment\n")
    assert "4 with their rewards" in evaluate()[2] and rows() == first
    Path(names[-1]).write_text("X = 0.25\n")
    assert "0 with their rewards; 4 are scored again" in evaluate()[2]
    assert [row["reward"] for row in rows()] == [0.25] * 4 and Stub.asked == 4
    version = json.loads(Path("eval.summary.json").read_text())["reward_version"]
    assert version != about["reward_version"]
