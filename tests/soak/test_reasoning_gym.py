"""`inf eval rg:NAME` with the real reasoning-gym, in a folder of its own beside our environment."""

from __future__ import annotations

import json
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import inf
from _inf.apps.cli import main
from _inf.apps.eval import reasoning_tasks
from _inf.apps.eval.reasoning_tasks import SOURCE, ScoreAnswer
from inf import ConfigError, InferenceError
from tests.support.installed import installed
from tests.support.json_lines import read
from tests.support.pages import ROOT, blocks
from tests.support.reference import Transformers
from tests.support.stub_engine import StubEngine
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.soak

INSTALL_SECONDS = 600.0
WITHOUT_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
SIZE = 2


@pytest.fixture(scope="module", autouse=True)
def _package():
    """reasoning-gym after our own packages; the folder is kept for the next run."""
    folder = installed("reasoning_gym", INSTALL_SECONDS)
    [packages] = folder.glob("lib/python3*/site-packages")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(packages)])
        yield


@pytest.fixture(scope="module")
def rows():
    """The first questions of all tasks."""
    from reasoning_gym.factory import DATASETS

    names = sorted(DATASETS.keys() - {"composite"})
    assert len(names) > 100
    found, _ = reasoning_tasks.load_tasks(f"rg:{','.join(names)}", SIZE, 7)
    assert [row["data_source"] for row in found[::SIZE]] == [SOURCE + name for name in names]
    return found


def scored(row: dict[str, Any], said: str) -> dict[str, Any]:
    truth = row["reward_model"]["ground_truth"]
    return ScoreAnswer("0")(row["data_source"], said, truth, row["extra_info"])


def test_right_answer_of_each_task_scores_1_and_any_other_text_has_a_score(rows):
    for row in map(json.loads, map(json.dumps, rows)):  # as a process gets them
        truth, task = row["reward_model"]["ground_truth"], row["data_source"]
        assert (truth is None) == (task.removeprefix(SOURCE) in WITHOUT_ANSWER)
        if truth is not None:
            right = scored(row, f"<answer>no</answer> then <answer>\n{truth}</answer>")
            assert right["score"] == 1 and right["answered"] == 1 and "raised" not in right, task
        for said in ("No tags.", "<answer>wrong</answer>", "<answer>42</answer>"):
            found = scored(row, said)
            assert 0 <= found["score"] <= 1, (task, said)
            assert found["answered"] == ("<answer>" in said)
            json.dumps(found)


def test_questions_of_each_task_are_the_same_after_each_start(rows):
    names = ",".join(row["data_source"].removeprefix(SOURCE) for row in rows[::SIZE])
    again, _ = reasoning_tasks.load_tasks(f"rg:{names}", SIZE, 7)
    assert again == rows


def test_score_that_raises_is_0_and_says_why(rows):
    [row, *_] = (row for row in rows if row["data_source"] == f"{SOURCE}prime_factorization")
    found = scored(row, "<answer>wrong</answer>")
    assert found["score"] == 0 and "ValueError" in found["raised"]


def test_wrong_names_and_what_the_package_cannot_make_are_refused(monkeypatch):
    for source, said in (
        ("rg:chain_sums", "no task 'chain_sums'; did you mean 'chain_sum'?"),
        ("rg:composite", "no task 'composite'. It has ab, acre"),
        ("rg:gcd,gcd", "named twice"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            reasoning_tasks.load_tasks(source, 1, 1)
    with pytest.raises(InferenceError, match="made no questions: AssertionError"):
        reasoning_tasks.load_tasks("rg:coin_flip", 0, 1)
    monkeypatch.setattr(reasoning_tasks, "SECONDS", 0.05)
    with pytest.raises(InferenceError, match=r"not made within 0.05 s; ask for fewer \(--size\)"):
        reasoning_tasks.load_tasks("rg:gcd", 1, 1)


class Sums(StubEngine):
    """Answers each sum rightly, or with the wrong form."""

    async def answer(self, prompt: list[Any], number: int) -> str:
        terms = prompt[1]["content"].rsplit(":", 1)[1].removesuffix("=")
        return f"<answer>{eval(terms)}</answer>" if number % 2 else "I do not know."


def test_command_scores_resumes_and_the_file_alone_repeats_the_scores(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(inf, "InferenceEngine", Sums)
    monkeypatch.setattr(Sums, "starts", 0)
    monkeypatch.chdir(tmp_path)
    command = ["eval", "rg:chain_sum", "--size", "8", "--data-seed", "3", "--json"]
    assert main([*command, "--limit", "4"]) == 0
    assert main(command) == 0 and Sums.starts == 2
    summary = json.loads(capfd.readouterr().out.rpartition("\n{\n")[2].join(("{", "")))
    assert (summary["answers"], summary["answers_kept"], summary["unscored"]) == (8, 4, 0)
    assert summary["data"] == "rg:chain_sum, size 8, seed 3"
    found = read(Path("rg-chain_sum.jsonl"))
    means = [summary["metrics"][f"val-core/{SOURCE}chain_sum/reward/mean@1"]]
    means += [summary["metrics"][f"val-aux/{SOURCE}chain_sum/answered/mean@1"]]
    assert means == [0.5, 0.5]

    assert {row["reward_extra"]["answered"] for row in found} == {0.0, 1.0}
    *_, program = blocks("docs/evaluation.md", "python")
    exec(compile(program, "docs/evaluation.md", "exec"), {})  # it asserts each score
    assert main(["eval", "compare", "rg-chain_sum.jsonl", "rg-chain_sum.jsonl"]) == 0
    assert "equal: 8" in capfd.readouterr().out
    other = [*command[:-3], "--data-seed", "4"]
    assert main(other) == 2  # other questions in the same file
    assert "data" in capfd.readouterr().err


def test_example_trains_on_the_tasks_own_score(mortal):
    example = runpy.run_path(str(ROOT / "examples" / "grpo_sums.py"))
    task = example["sums"](3, 2)
    right = [f"<answer>{entry['answer']}</answer>" for entry in task]
    assert example["scores"](task, [right[0], "no", right[1], right[1]], 2) == [1, 0, 1, 1]
    model = Transformers.of(tiny_model()).model
    version = mortal.generate("Hi", max_tokens=1).metadata[0]["weight_version"]
    curve = example["train"](mortal, model, 2, 1e-3)
    assert len(curve) == 2 and 0 <= example["right"](mortal) <= 40
    assert mortal.generate("Hi", max_tokens=1).metadata[0]["weight_version"] == version + 2
