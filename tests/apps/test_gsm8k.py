"""GSM8K: problems, prompts, and verl's two rules of scoring."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from _inf.apps.eval.gsm8k import (
    HUB,
    RULES,
    SUFFIX,
    Problem,
    compute_score,
    load_problems,
    rows,
    solved,
    tools,
)
from _inf.errors import ConfigError
from _inf.tools.definition import as_tools

ROOT = Path(__file__).parents[2]
OWN = ROOT / "examples" / "problems.jsonl"
REAL = os.environ.get("INF_GSM8K")
DOCS = (ROOT / "docs" / "evaluation.md").read_text()
ROW = re.compile(r"^\| `(.+?)` \| (right|wrong) \| (right|wrong) \|$")


def scores(completion: str, problem: Problem) -> dict[str, Any]:
    """The verdicts of the rules; the reward is the first one's."""
    found = compute_score(data_source=HUB, solution_str=completion, ground_truth=problem.truth)
    assert found.pop("score") == found["verl_strict"]
    return found


@pytest.mark.verl
def test_table_of_the_documentation_is_what_the_rules_say() -> None:
    lines = [found.groups() for line in DOCS.splitlines() if (found := ROW.match(line))]
    assert len(lines) == 12
    for completion, *verdicts in lines:
        truth = "1,200" if "200" in completion else "18"
        found = scores(completion, Problem("How many?", f"It is so.\n#### {truth}"))
        assert found.keys() == RULES.keys()
        said = ["right" if found[rule] else "wrong" for rule in RULES]
        assert said == verdicts, completion


@pytest.mark.verl
@pytest.mark.parametrize("path", [OWN, *([Path(REAL)] if REAL else [])])
def test_answers_of_the_file_itself_are_right(path: Path) -> None:
    problems = load_problems(path, "test")
    assert len(problems) >= 10
    for problem in problems[:200]:
        assert scores(problem.answer, problem)["verl_strict"] == 1
    own, questions = load_problems(OWN, "test"), {problem.question for problem in problems}
    assert own[-1].answer.endswith("#### 1,050") and own[-1].truth == "1050"
    assert path == OWN or not questions & {problem.question for problem in own}


def test_prompt_is_verls_and_examples_are_turns_before_it() -> None:
    first, second = Problem("How?", "So.\n#### 1"), Problem("Why?", "Thus.\n#### 2")
    [row] = rows([first], [second], tool=False)
    assert row["prompt"] == [
        {"role": "user", "content": f"Why? {SUFFIX}"},
        {"role": "assistant", "content": "Thus.\n#### 2"},
        {"role": "user", "content": f"How? {SUFFIX}"},
    ]
    assert row["reward_model"]["ground_truth"] == "1" and row["extra_info"]["question"] == "How?"
    assert "tools_kwargs" not in row["extra_info"]


@pytest.mark.verl
def test_tools_get_each_problems_own_truth() -> None:
    given = [
        row["extra_info"]["tools_kwargs"]
        for row in rows(load_problems(OWN, "test")[-2:], [], tool=True)
    ]
    truths = [each["calc_gsm8k_reward"]["create_kwargs"]["ground_truth"] for each in given]
    assert truths == ["250", "1050"]
    assert [*given[0]] == [
        tool.name for tool in as_tools(tools())
    ]  # a row has the tools that it names


def test_example_that_is_scored_too_is_refused() -> None:
    problems = load_problems(OWN, "test")
    with pytest.raises(ConfigError, match="2 of the examples are among the problems"):
        solved(problems, 2, OWN)
    assert solved(problems, 0, OWN) == []
    assert solved(problems[2:], 2, OWN) == problems[:2]
    with pytest.raises(ConfigError, match="11 are needed"):
        solved([], 11, OWN)


@pytest.mark.parametrize(
    "line",
    [
        *("[]", '{"question": "a"}', '{"question": "a", "answer": "no number"}'),
        '{"question": "a", "answer": "#### ,"}',
    ],
)
def test_line_that_is_no_problem_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(f"{OWN.read_text()}\n{line}\n")
    with pytest.raises(ConfigError, match="problems.jsonl, problem 11: it must be"):
        load_problems(file, "test")


@pytest.mark.verl
def test_hub_that_cannot_be_reached_is_one_sentence_at_once(tmp_path: Path) -> None:
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    code = "import sys; from _inf.apps.cli import main; sys.exit(main())"
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, "eval", "gsm8k"],
        cwd=tmp_path,
        env=os.environ | nowhere | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    assert re.match(r"inf: openai/gsm8k: the Hub could not be reached .* --data", done.stderr)
    assert time.monotonic() - start < 60  # most of it are imports; datasets' retries are 23 s
