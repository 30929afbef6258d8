"""Rows of verl's form from files, tables and lists, and what is refused."""

from pathlib import Path

import numpy
import pandas
import pyarrow.parquet
import pytest

from _inf.apps.eval.dataset import read_examples
from _inf.errors import ConfigError
from tests.support.json_lines import write

ROWS = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"How much is {i} and 2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(i + 2)},
        "extra_info": {"index": i, "tools_kwargs": {"calculator": {"create_kwargs": {"i": i}}}},
    }
    for i in range(5)
]


def test_every_form_gives_the_same_rows():
    import datasets  # seconds, which the other tests do not wait for

    table = pandas.DataFrame(ROWS, index=[3, 5, 9, 10, 20])  # the index is no column
    table.to_parquet("rows.parquet")
    forms = [write(Path("rows.jsonl"), [*ROWS, ""]), write(Path("rows.json"), [ROWS])]
    forms += ["rows.parquet", table, datasets.Dataset.from_list(ROWS), ROWS]
    [first, *others] = [read_examples(each) for each in forms]
    assert all(each == first for each in others)
    assert first[3].prompt == ROWS[3]["prompt"] and first[3].ground_truth == "5"


def test_row_has_the_tools_that_its_tools_kwargs_name_and_all_without_them():
    named = {"tools_kwargs": {"search": {}}}
    for extra_info, tools, found in (
        ({"tools_kwargs": {}}, True, {"tools_kwargs": {}}),
        ({"tools_kwargs": {"calculator": None, "search": {}}}, True, named),
        ({"tools_kwargs": {"search": {}}}, False, {}),
        ({"tools_kwargs": None}, True, {}),
        ({"interaction_kwargs": {"a": 1}}, True, {"interaction_kwargs": {"a": 1}}),
        ({}, True, {}),
    ):
        [row] = read_examples([ROWS[0] | {"extra_info": extra_info}])
        assert row.params(tools=tools, interactions=True) == found


def test_shuffled_rows_keep_their_numbers_and_its_seed_repeats_their_order():
    examples = read_examples(ROWS, shuffle_seed=7)
    numbers = [each.number for each in examples]
    assert sorted(numbers) == [0, 1, 2, 3, 4] != numbers
    assert [each.ground_truth for each in examples] == [str(number + 2) for number in numbers]
    assert examples == read_examples(ROWS, shuffle_seed=7)


def test_whole_numbers_of_a_parquet_file_stay_what_they_are():
    numbers = [9007199254740993, None, 3]  # the first is no float
    rows = [{"prompt": "x", "level": each, "extra_info": {"all": [each, 1]}} for each in numbers]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), "rows.parquet")
    read = read_examples(Path("rows.parquet"))
    assert [each.columns["level"] for each in read] == numbers
    assert all(type(each.columns["level"]) in (int, type(None)) for each in read)
    assert [each.extra_info for each in read] == [row["extra_info"] for row in rows]


def test_data_of_another_form_is_refused_by_row_and_key():
    row = '{"prompt": "x"}'
    texts = {"rows.json": row, "cut.json": "[", "rows.parquet": row}
    for name, text in {**texts, "rows.jsonl": f'{row}\n\n{{"prompt"'}.items():
        Path(name).write_text(text)
    for data, said in (
        ([], "data: it has no rows"),
        ([ROWS[0], {"question": "?"}], "data, row 1: the key 'prompt' is missing; it has question"),
        ([{"prompt": "x", "reward_model": "rule"}], "data, row 0: reward_model must be an object"),
        ([{"prompt": "x", "extra_info": 3}], "row 0: extra_info must be an object"),
        ([{"prompt": "x", "data_source": 3}], "row 0: data_source must be a name"),
        ([[1]], "row 0: it must be an object"),
        (3, "must be a path, a table or a list"),
        ("rows.csv", "rows.csv: the name of a file of rows ends in .parquet"),
        ("missing.jsonl", "missing.jsonl cannot be read"),
        ("cut.json", "cut.json cannot be read: Expecting value"),
        ("rows.jsonl", "rows.jsonl, line 3: it is not JSON .*: Expect"),
        ("rows.json", "rows.json: it must be a list of rows, not {'prompt': 'x'}"),
        ("rows.parquet", "rows.parquet cannot be read"),
    ):
        with pytest.raises(ConfigError, match=said):
            read_examples(data)


def test_columns_are_kept_for_agent_loops_as_verls_data_set_gives_them():
    first = {**ROWS[1], "level": "hard", "agent_name": "game"}
    second = {"prompt": numpy.array(["y"]), "raw_prompt": "y"}
    table = pandas.DataFrame([first, second])
    for data in (table, table.astype({"agent_name": "string"})):  # NaN, and NA
        one, other = read_examples(data)
        assert (one.agent_name, other.agent_name) == ("game", None)
        made = {"uid": "0", "index": 1, "interaction_kwargs": {}, "level": "hard"}
        assert made.items() <= one.agent_kwargs.items()
        assert other.agent_kwargs["extra_info"] == {} and other.agent_kwargs["index"] == 0
        assert other.agent_kwargs["level"] is None and "raw_prompt" not in other.agent_kwargs
        assert (other.prompt, other.data_source, other.ground_truth) == (["y"], "unknown", None)
    assert read_examples(table[:1], prompt_key="level")[0].prompt == "hard"
