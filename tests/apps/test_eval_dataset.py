"""Rows of verl's form from files, tables and lists, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy
import pandas
import pyarrow.parquet
import pytest

from _inf.apps.eval.dataset import read_examples
from _inf.errors import ConfigError

ROWS: list[dict[str, Any]] = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"How much is {i} and 2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(i + 2)},
        "extra_info": {
            "split": "test",
            "index": i,
            "tools_kwargs": {"calculator": {"create_kwargs": {"ground_truth": str(i + 2)}}},
        },
    }
    for i in range(5)
]


def test_every_form_gives_the_same_rows(tmp_path: Path) -> None:
    # This takes seconds, which the other tests do not wait for.
    import datasets

    table = pandas.DataFrame(ROWS)
    table.to_parquet(tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)) + "\n\n")
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    forms: list[Any] = [tmp_path / f"rows{end}" for end in (".parquet", ".jsonl", ".json")]
    forms += [str(forms[0]), table, datasets.Dataset.from_list(ROWS), ROWS]
    [first, *others] = [read_examples(each) for each in forms]
    assert all(each == first for each in others)
    assert first[3].prompt == ROWS[3]["prompt"] and first[3].ground_truth == "5"
    tools_kwargs = ROWS[3]["extra_info"]["tools_kwargs"]
    assert first[3].params(tools=True, interactions=True) == {"tools_kwargs": tools_kwargs}
    assert first[3].params(tools=False, interactions=True) == {}


def test_row_has_the_tools_that_its_tools_kwargs_name_and_all_without_them() -> None:
    for tools_kwargs, found in (
        ({}, {"tools_kwargs": {}}),
        ({"calculator": None, "search": {}}, {"tools_kwargs": {"search": {}}}),
        (None, {}),
    ):
        [row] = read_examples([ROWS[0] | {"extra_info": {"tools_kwargs": tools_kwargs}}])
        assert row.params(tools=True, interactions=True) == found
    [row] = read_examples([ROWS[0] | {"extra_info": {}}])
    assert row.params(tools=True, interactions=True) == {}


def test_shuffled_rows_keep_their_numbers_and_its_seed_repeats_their_order() -> None:
    examples = read_examples(ROWS, shuffle_seed=7)
    numbers = [each.number for each in examples]
    assert sorted(numbers) == [0, 1, 2, 3, 4] != numbers
    assert [each.ground_truth for each in examples] == [str(number + 2) for number in numbers]
    assert examples == read_examples(ROWS, shuffle_seed=7)


def test_arrays_of_a_parquet_file_become_lists_and_prompts_may_have_another_key() -> None:
    array = numpy.array([{"role": "user", "content": "Hi"}])
    [example] = read_examples([{"question": array}], prompt_key="question")
    assert example.prompt == [{"role": "user", "content": "Hi"}]
    assert example.data_source == "unknown" and example.ground_truth is None


def test_whole_numbers_of_a_parquet_file_stay_what_they_are(tmp_path: Path) -> None:
    numbers = [9007199254740993, None, 3]  # the first is no float
    rows = [
        {"prompt": "x", "level": each, "extra_info": {"index": each, "all": [each, 1]}}
        for each in numbers
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    read = read_examples(tmp_path / "rows.parquet")
    assert [each.columns["level"] for each in read] == numbers
    assert all(type(each.columns["level"]) in (int, type(None)) for each in read)
    assert [each.extra_info for each in read] == [row["extra_info"] for row in rows]


def test_index_of_a_table_is_no_column_of_its_parquet_file(tmp_path: Path) -> None:
    table = pandas.DataFrame({"prompt": ["x", "y", "z"]})[1:]
    table.to_parquet(tmp_path / "rows.parquet")
    assert [each.columns for each in read_examples(tmp_path / "rows.parquet")] == [{}, {}]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "data: it has no rows"),
        ([ROWS[0], {"question": "?"}], "data, row 1: the key 'prompt' is missing; it has question"),
        ([{"prompt": "x", "reward_model": "rule"}], "data, row 0: reward_model must be an object"),
        ([{"prompt": "x", "extra_info": 3}], "row 0: extra_info must be an object"),
        ([{"prompt": "x", "data_source": 3}], "row 0: data_source must be a name"),
        ([[1]], "row 0: it must be an object"),
        (3, "must be a path, a table or a list"),
        ("rows.csv", "rows.csv: the name of a file of rows ends in .parquet"),
        ("missing.jsonl", "missing.jsonl cannot be read"),
        ("rows.jsonl", "rows.jsonl, line 3: it is not JSON .*: Expect"),
        ("rows.json", "rows.json: it must be a list of rows, not {'prompt': 'x'}"),
        ("cut.json", "cut.json cannot be read: Expecting value"),
        ("rows.parquet", "rows.parquet cannot be read"),
    ],
)
def test_data_of_another_form_is_refused_by_row_and_key(
    data: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    row = '{"prompt": "x"}'
    texts = {"rows.json": row, "cut.json": "[", "rows.parquet": row}
    for name, text in {**texts, "rows.jsonl": f'{row}\n\n{{"prompt"'}.items():
        Path(name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_examples(data)


def test_columns_are_kept_for_agent_loops_as_verls_data_set_gives_them() -> None:
    table = pandas.DataFrame(
        [{**ROWS[1], "level": "hard", "agent_name": "game"}, {"prompt": "x", "raw_prompt": "y"}]
    )
    first, second = read_examples(table)
    assert (first.agent_name, second.agent_name) == ("game", None)  # NaN in the table
    info = ROWS[1]["extra_info"]
    assert first.agent_kwargs == {
        "uid": "0",
        "data_source": "openai/gsm8k",
        "ability": "math",
        "reward_model": ROWS[1]["reward_model"],
        "level": "hard",
        "extra_info": info,
        "index": 1,
        "tools_kwargs": info["tools_kwargs"],
        "interaction_kwargs": {},
    }
    assert second.agent_kwargs["extra_info"] == {} and second.agent_kwargs["index"] == 0
    assert second.agent_kwargs["level"] is None and "raw_prompt" not in second.agent_kwargs


def test_missing_text_of_a_table_is_none_and_not_a_number(tmp_path: Path) -> None:
    rows = [{"prompt": "1 + 1?", "agent_name": "a"}, {"prompt": "2 + 2?", "agent_name": None}]
    table = pandas.DataFrame(rows)
    table.to_parquet(tmp_path / "rows.parquet")
    for data in (table, table.astype("string"), tmp_path / "rows.parquet"):
        assert [example.agent_name for example in read_examples(data)] == ["a", None]
