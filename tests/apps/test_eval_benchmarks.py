"""`inf eval math500`, `aime24` and `aime25`: rows that verl's own reward functions score."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from _inf.apps.eval.benchmarks import preset_rows
from _inf.apps.eval.dataset import read_examples
from _inf.errors import ConfigError

MATH = {"problem": "What is half of \\(\\frac{2}{3}\\)?", "answer": "\\frac{1}{3}", "level": 1}
MATH |= {"solution": "It is \\boxed{\\frac{1}{3}}.", "unique_id": "test/prealgebra/1.json"}
AIME24 = {"id": 60, "problem": "What is $5^2$?", "solution": "It is 25.", "answer": "025"}
AIME24 |= {"url": "https://example.org", "year": "2024"}
AIME25 = {"problem": "What is 7 * 10?", "answer": "70", "id": "0"}


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pandas.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.verl
@pytest.mark.parametrize(
    ("name", "row", "file", "right", "wrong"),
    [
        ("math500", MATH, "m.jsonl", "So it is \\boxed{\\frac{1}{3}}.", "So it is \\boxed{3}."),
        ("aime24", AIME24, "a.parquet", "It is 25.\nAnswer: 25", "It is 25."),
        ("aime25", AIME25, "a.jsonl", "Answer: $70$", "Answer: 7"),
    ],
)
def test_rows_of_the_hubs_columns_are_asked_and_scored_as_verl_does(
    name: str, row: dict[str, Any], file: str, right: str, wrong: str, tmp_path: Path
) -> None:
    # This takes seconds, which the other tests do not wait for.
    from verl.utils.reward_score import default_compute_score

    path = written(tmp_path / file, [row, row])
    rows = preset_rows(name, path)
    assert [each["extra_info"]["index"] for each in rows] == [0, 1]
    [example, _] = read_examples(rows)
    [message] = example.prompt
    assert message["role"] == "user" and row["problem"] in message["content"]
    # The prompt says how to write the answer that the reward function reads.
    assert ("\\boxed{}" if name == "math500" else '"Answer:"') in message["content"]
    rewards = []
    for text in (right, wrong):
        score = default_compute_score(example.data_source, text, example.ground_truth)
        rewards.append(score["acc"] if isinstance(score, dict) else score)
    assert rewards == [True, False]
    others = row.keys() - {"problem", "answer"}
    assert all(example.extra_info[key] == row[key] for key in others)


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("math500", {"question": "?"}, '{}, row 1: it must have "problem" and "answer", as Hugg'),
        ("math500", AIME25 | {"answer": None}, '{}, row 1: it must have "problem" and "answer"'),
        ("aime25", AIME25 | {"answer": "x"}, "{}, row 1: answer must be a whole number, not 'x'"),
    ],
)
def test_row_of_another_form_is_named(
    name: str, row: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", [AIME25, row])
    with pytest.raises(ConfigError) as failure:
        preset_rows(name, path)
    assert str(failure.value).startswith(said.format(path))
