"""`inf eval gsm8k`, `math500`, `aime24` and `aime25`: rows that verl's reward functions score."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas
import pytest

from _inf.apps.eval.benchmarks import RULES, BenchmarkOptions, compute_score, data_of
from _inf.apps.eval.dataset import read_examples
from _inf.errors import ConfigError
from tests.support.json_lines import write

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "evaluation.md").read_text()
ROW = re.compile(r"^\| `(.+?)` \| (right|wrong) \| (right|wrong) \|$")
GSM8K = {"question": "How much is 1,000 + 50?", "answer": "1,000 + 50 is\n#### 1,050"}
MATH = {"problem": "What is half of \\(\\frac{2}{3}\\)?", "answer": "\\frac{1}{3}", "level": 1}
AIME24 = {"id": 60, "problem": "What is $5^2$?", "solution": "It is 25.", "answer": "025"}
AIME25 = {"problem": "What is 7 * 10?", "answer": "70", "id": "0"}


def rows(name: str, path: Path, given: list[Any]) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        pandas.DataFrame(given).to_parquet(path)
    else:
        write(path, given)
    return list(data_of(name, BenchmarkOptions(data=path), "reward.py").rows)


@pytest.mark.verl
@pytest.mark.parametrize(
    ("name", "row", "file", "right", "wrong"),
    [
        ("gsm8k", GSM8K, "g.jsonl", "#### 1,050", "1050"),
        ("math500", MATH, "m.jsonl", "So it is \\boxed{\\frac{1}{3}}.", "So it is \\boxed{3}."),
        ("aime24", AIME24, "a.parquet", "It is 25.\nAnswer: 25", "It is 25."),
        ("aime25", AIME25, "a.jsonl", "Answer: $70$", "Answer: 7"),
    ],
)
def test_rows_of_the_hubs_columns_are_asked_and_scored_as_verl_does(name, row, file, right, wrong):
    from verl.utils.reward_score import default_compute_score  # seconds, for this test alone

    examples = read_examples(rows(name, Path(file), [row, row]))
    assert [each.extra_info["index"] for each in examples] == [0, 1]
    [message] = examples[0].prompt
    question = row.get("question") or row["problem"]
    assert message["role"] == "user" and question in message["content"]
    # The prompt says how to write the answer that the reward function reads.
    form = {"gsm8k": '"####"', "math500": "\\boxed{}"}.get(name, '"Answer:"')
    assert form in message["content"]
    rewards = []
    for text in (right, wrong):
        score = default_compute_score(examples[0].data_source, text, examples[0].ground_truth)
        rewards.append(score["acc"] if isinstance(score, dict) else score)
    assert rewards == [True, False]
    others = row.keys() - {"problem", "answer"}
    assert all(examples[0].extra_info[key] == row[key] for key in others)


def test_row_of_another_form_is_named():
    for name, row, said in (
        ("gsm8k", [], 'row 1: it must have "question" and "answer", as openai/gsm8k; it is []'),
        ("gsm8k", {"question": "a", "answer": "no number"}, "row 1: answer must be a text with ##"),
        ("math500", AIME25 | {"answer": None}, 'row 1: it must have "problem" and "answer"'),
        ("aime25", AIME25 | {"answer": "x"}, "row 1: answer must be a whole number, not 'x'"),
    ):
        with pytest.raises(ConfigError) as failure:
            rows(name, Path("rows.jsonl"), [GSM8K if name == "gsm8k" else AIME25, row])
        assert str(failure.value).startswith(f"rows.jsonl, {said}")


@pytest.mark.verl
def test_gsm8ks_table_of_the_documentation_is_what_its_rules_say():
    lines = [found.groups() for line in DOCS.splitlines() if (found := ROW.match(line))]
    assert len(lines) == 12
    for said, *verdicts in lines:
        found = compute_score(said, "1200" if "200" in said else "18", data_source="x")
        assert found.pop("score") == found["verl_strict"] and found.keys() == RULES.keys()
        assert ["right" if found[rule] else "wrong" for rule in RULES] == verdicts, said


@pytest.mark.verl
def test_hub_that_cannot_be_reached_is_one_sentence_at_once(command, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "empty")
    code, out, err = command("eval", "gsm8k")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert re.match(r"inf: openai/gsm8k: the Hugging Face Hub could not be reached .* --data", err)
