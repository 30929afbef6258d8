"""GSM8K: problems, prompts, four rules of scoring, the summary and its plot."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from scipy.stats import binomtest

from _inf.apps.eval.gsm8k import RULES, SUFFIX, Problem, examples, jobs, load, scores
from _inf.apps.eval.report import Run, Share, Summary, plot
from _inf.errors import ConfigError

ROOT = Path(__file__).parents[2]
OWN = ROOT / "examples" / "problems.jsonl"
REAL = os.environ.get("INF_GSM8K")
DOCS = (ROOT / "docs" / "evaluation.md").read_text()
ROW = re.compile(
    r"^\| `(.+?)` \| (right|wrong) \| (right|wrong) \| (right|wrong) \| (right|wrong) \|$"
)


def test_table_of_the_documentation_is_what_the_rules_say() -> None:
    rows = [found.groups() for line in DOCS.splitlines() if (found := ROW.match(line))]
    assert len(rows) == 14
    for completion, *verdicts in rows:
        truth = "1,200" if "200" in completion else "18"
        found = scores(completion, Problem("How many?", f"It is so.\n#### {truth}"))
        assert tuple(found) == RULES
        said = ["right" if found[rule] else "wrong" for rule in RULES]
        assert said == verdicts, completion


@pytest.mark.parametrize("path", [OWN, *([Path(REAL)] if REAL else [])])
def test_answers_of_the_file_itself_are_right_by_the_strict_rules(path: Path) -> None:
    problems = load(path, "test")
    assert len(problems) >= 10
    for problem in problems[:200]:
        found = scores(problem.answer, problem)
        assert found["verl_strict"] and found["lm_eval_strict_match"]


def test_first_of_the_rules_agrees_with_verls_own_reading_of_the_truth() -> None:
    [*_, last] = load(OWN, "test")
    assert last.answer.endswith("#### 1,050") and last.truth == "1050"


def test_prompt_is_verls_and_examples_are_turns_before_it() -> None:
    first, second = Problem("How?", "So.\n#### 1"), Problem("Why?", "Thus.\n#### 2")
    [job] = jobs([first], [second], tool=False)
    assert job.prompt == [
        {"role": "user", "content": f"Why? {SUFFIX}"},
        {"role": "assistant", "content": "Thus.\n#### 2"},
        {"role": "user", "content": f"How? {SUFFIX}"},
    ]
    assert job.params == {}


def test_tools_get_each_problems_own_truth() -> None:
    given = [job.params["tools_kwargs"] for job in jobs(load(OWN, "test")[-2:], [], tool=True)]
    truths = [each["calc_gsm8k_reward"]["create_kwargs"]["ground_truth"] for each in given]
    assert truths == ["250", "1050"]


def test_example_that_is_scored_too_is_refused() -> None:
    problems = load(OWN, "test")
    with pytest.raises(ConfigError, match="2 of the examples are among the problems"):
        examples(problems, 2, OWN)
    assert examples(problems, 0, OWN) == []
    assert examples(problems[2:], 2, OWN) == problems[:2]
    with pytest.raises(ConfigError, match="11 are needed"):
        examples([], 11, OWN)


@pytest.mark.parametrize(
    "line", ["[]", '{"question": "a"}', '{"question": "a", "answer": "no number"}']
)
def test_line_that_is_no_problem_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "problems.jsonl"
    file.write_text(f"{OWN.read_text()}\n{line}\n")
    with pytest.raises(ConfigError, match="problems.jsonl, problem 11: it must be"):
        load(file, "test")
    file.write_text("{")
    with pytest.raises(ConfigError, match="problems.jsonl cannot be read: Expecting property"):
        load(file, "test")
    with pytest.raises(ConfigError, match="no.jsonl cannot be read"):
        load(tmp_path / "no.jsonl", "test")


def row(right: bool, tokens: int = 10, finish: str = "stop") -> dict[str, Any]:
    verdicts = dict.fromkeys(RULES, right)
    return {"scores": verdicts, "completion_tokens": tokens, "finish_reason": finish}


def run(**other: Any) -> Run:
    about: dict[str, Any] = {"model": "m/x", "data": "p.jsonl", "limit": 4, "shots": 0}
    about |= {"tool": False, "parameters": {"temperature": 0.0, "stop": ["$a$"]}}
    return Run(**(about | {"date": "2026-11-21"} | other))


def test_summary_counts_unanswered_questions_as_wrong() -> None:
    rows = [row(True), row(False, 30, "length"), row(True)]
    found = Summary.of(run(), rows, 4, None)
    assert (found.questions, found.unanswered, found.completion_tokens) == (4, 1, 50)
    assert found.cut_by_length == pytest.approx(1 / 3)
    for share in found.rules.values():
        assert share == Share.of(2, 4) and share.accuracy == 0.5
    for word in ("4 questions", "1 of them unanswered", "50.0%   15.0% to 85.0%", *RULES):
        assert word in found.table()


@pytest.mark.parametrize("right", [0, 1, 5, 10])
def test_interval_is_wilsons_and_not_empty_where_none_or_all_are_right(right: int) -> None:
    theirs = binomtest(right, 10).proportion_ci(method="wilson")
    share = Share.of(right, 10)
    assert (share.low, share.high) == pytest.approx((theirs.low, theirs.high), abs=1e-6)
    assert share.high - share.low > 0.2
    assert (Share.of(0, 0).low, Share.of(0, 0).high) == (0.0, 1.0)


def test_summary_says_what_was_measured_how_and_when() -> None:
    said = Summary.of(run(shots=5, tool=True), [row(True)], 1, None).table()
    for word in ("m/x on p.jsonl", "first 4 problems", "5 examples", "tools", "2026-11-21"):
        assert word in said.splitlines()[0]
    assert "temperature=0.0" in said and "all problems" in str(run(limit=None))


@pytest.mark.parametrize("rows", [[], [row(True)], [row(i % 3 == 0, i) for i in range(50)]])
def test_picture_is_a_png_that_names_the_run(
    rows: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []
    suptitle = Figure.suptitle

    def recorded(figure: Figure, title: str, **how: Any) -> Any:
        titles.append(title)
        return suptitle(figure, title, **how)

    monkeypatch.setattr(Figure, "suptitle", recorded)
    plot(run(), rows, tmp_path / "gsm8k.png")
    assert (tmp_path / "gsm8k.png").read_bytes().startswith(b"\x89PNG")
    assert titles == [str(run())]


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


def test_own_problems_are_not_the_benchmarks() -> None:
    if not REAL:
        pytest.skip("INF_GSM8K does not name the benchmark's file")
    real = {json.loads(line)["question"] for line in Path(REAL).read_text().splitlines()}
    assert not real & {problem.question for problem in load(OWN, "test")}
