"""`inf eval gsm8k` on a real engine: its rows, its summary, and going on."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import inf
from _inf.apps.eval.benchmarks import HASHES, RULES
from inf import InferenceEngine
from tests.support.json_lines import read

PROBLEMS = Path(inf.__file__).parent / "examples" / "problems.jsonl"
OPTIONS = ("--data", PROBLEMS, "--max-tokens", 24, "--reward-workers", 0)
Evaluate = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.verl


@pytest.fixture
def evaluate(on_tiny: Evaluate, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Evaluate:
    """`inf eval gsm8k` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(on_tiny, "eval", "gsm8k", *OPTIONS)


def test_rows_are_greedy_answers_and_a_higher_limit_goes_on(
    evaluate: Evaluate, tiny: InferenceEngine
) -> None:
    code, out, _ = evaluate("--limit", 1)
    assert code == 0
    assert "1 answers, 0 without a reward" in out and all(rule in out for rule in RULES)
    assert f"SmolLM2-135M-Instruct on {PROBLEMS}, the first 1 rows" in out
    first = Path("gsm8k.jsonl").read_text()
    before = tiny.stats()["requests"]
    code, out, _ = evaluate("--limit", 2, "--json")
    assert tiny.stats()["requests"] == before + 1
    assert code == 0 and Path("gsm8k.jsonl").read_text().startswith(first)
    found, problems = read(Path("gsm8k.jsonl")), read(PROBLEMS)[:2]
    prompts = [HASHES.format(problem["question"]) for problem in problems]
    wanted = tiny.generate(prompts, temperature=0, max_tokens=24)
    assert [row["completion"] for row in found] == wanted.completions
    assert [row["ground_truth"] for row in found] == ["54", "12"]
    about = json.loads(out)
    assert about == json.loads(Path("gsm8k.summary.json").read_text())
    assert {f"val-aux/openai/gsm8k/{rule}/stderr@1" for rule in RULES} <= about["metrics"].keys()
    assert (about["answers"], about["limit"], about["data"]) == (2, 2, str(PROBLEMS))
