"""`inf eval gsm8k` on a real engine: its rows, its summary, and going on."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import inf
from _inf.apps.eval.gsm8k import RULES, SUFFIX
from inf import InferenceEngine
from tests.support.json_lines import read

PROBLEMS = Path(inf.__file__).parent / "examples" / "problems.jsonl"
REWARD = "def one(**rest): return 1.0\n"  # without verl, which takes seconds to import
Evaluate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def evaluate(
    engine: InferenceEngine,
    command: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Evaluate:
    """`inf eval gsm8k` on the session's engine, in a folder of its own."""
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(engine))
    monkeypatch.chdir(tmp_path)
    return functools.partial(command, "eval", "gsm8k", "--data", PROBLEMS, "--max-tokens", 24)


@pytest.mark.verl
def test_rows_are_greedy_answers_and_a_higher_limit_goes_on(
    evaluate: Evaluate, engine: InferenceEngine
) -> None:
    code, out, _ = evaluate("--limit", 1)
    assert code == 0
    assert "1 answers, 0 without a reward" in out and all(rule in out for rule in RULES)
    assert f"SmolLM2-135M-Instruct on {PROBLEMS}, the first 1 rows" in out
    first = Path("gsm8k.jsonl").read_text()
    before = engine.stats()["requests"]
    code, out, _ = evaluate("--limit", 2, "--json")
    assert engine.stats()["requests"] == before + 1
    assert code == 0 and Path("gsm8k.jsonl").read_text().startswith(first)
    problems = [json.loads(line) for line in PROBLEMS.read_text().splitlines()[:2]]
    prompts = [f"{problem['question']} {SUFFIX}" for problem in problems]
    wanted = engine.generate(prompts, temperature=0, max_tokens=24)
    assert [row["completion"] for row in read(Path("gsm8k.jsonl"))] == wanted.completions
    assert [row["ground_truth"] for row in read(Path("gsm8k.jsonl"))] == ["54", "12"]
    about = json.loads(out)
    assert about == json.loads(Path("gsm8k.summary.json").read_text())
    means = {f"val-aux/openai/gsm8k/{rule}/mean@1" for rule in RULES}
    assert about["answers"] == 2 and means <= set(about["metrics"])
    assert "val-aux/openai/gsm8k/verl_flexible/stderr@1" in about["metrics"]
    assert (about["model"], about["data"]) == ("SmolLM2-135M-Instruct", str(PROBLEMS))
    assert (about["limit"], about["parameters"]["temperature"]) == (2, 0.0)
    assert about["parameters"]["max_tokens"] == 24 and about["date"].startswith("20")
    cut = sum(row["finish_reason"] == "length" for row in wanted.metadata)
    assert about["cut_by_length"] == pytest.approx(cut / 2)
    assert not list(Path.cwd().glob("*.png"))


def test_examples_go_before_the_question_and_change_the_run(
    evaluate: Evaluate, tmp_path: Path
) -> None:
    shots = tmp_path / "shots.jsonl"
    shots.write_text('{"question": "What is 1 + 1?", "answer": "1 + 1 = 2\\n#### 2"}\n')
    (tmp_path / "reward.py").write_text(REWARD)
    one = ["--limit", 1, "--reward", "reward.py:one"]
    assert evaluate(*one)[0] == 0
    code, _, err = evaluate(*one, "--shots", 1, "--shots-from", shots)
    assert code == 2 and "begun with data=" in err
    assert evaluate(*one, "--shots", 1, "--shots-from", shots, "--out", "few.jsonl")[0] == 0
    [few] = read(Path("few.jsonl"))
    assert few["prompt"][1]["content"].endswith("#### 2") and few["reward"] == 1.0


@pytest.mark.verl
def test_tools_run_inside_the_answer(evaluate: Evaluate, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    options = ["--tool", "--out", "tool.jsonl", "--reward", "reward.py:one"]
    code, out, err = evaluate("--limit", 2, *options)
    assert (code, "Traceback" in err) == (0, False), err
    found = read(Path("tool.jsonl"))
    assert [row["line"] for row in found] == [1, 2]
    assert all(isinstance(row["tool_calls"], list) for row in found)
    assert "BaseTool" not in out and "type" not in out.split("\n")[0]
