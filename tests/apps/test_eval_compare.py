"""`inf eval compare`: paired differences of two runs, their intervals, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy
import pytest

from _inf.apps.eval.compare import Comparison, compare_runs
from _inf.errors import ConfigError
from tests.support.json_lines import write

Rows = list[dict[str, Any]]
FIRST, SECOND = Path("a.jsonl"), Path("b.jsonl")


def row(number: int, reward: Any, source: str = "math", **more: Any) -> dict[str, Any]:
    about = {"number": number, "data_source": source, "prompt": f"{number}?", "reward": reward}
    return about | {"scored_by": "f 1"} | more


def compared(first: Rows, second: Rows) -> Comparison:
    for path, rows in ((FIRST, first), (SECOND, second)):
        write(path, [{"line": line, **each} for line, each in enumerate(rows, 1)])
    return compare_runs(FIRST, SECOND)


PAIRED = """\
A: a.jsonl
B: b.jsonl
      prompts        A        B    B - A  95 % interval
all         3   0.5000   0.6667  +0.1667  -0.5000 to +1.0000
math        2   0.2500   0.5000  +0.2500  -0.5000 to +1.0000
code        1   1.0000   1.0000  +0.0000  none: one prompt says nothing about others
better: 1, worse: 1, equal: 1
  row 1: 0 -> 1 (math) 1?
  row 0: 0.5 -> 0 (math) 0?
only in A, not compared: 1 rows [7]
only in B, not compared: 1 rows [9]
no reward in one of them, not compared: 1 rows [3]
answers without a reward: 1 of A, 1 of B"""


def test_rows_are_paired_by_their_number_and_what_is_not_compared_is_counted_and_named():
    first = [row(0, 1.0), row(0, 0.0), row(1, 0.0), row(1, None), row(5, 1.0, "code")]
    first += [row(1, 0.0, line=4), row(7, 1.0), row(3, None, scored_by=None)]  # a line's later row
    second = [row(5, 1.0, "code"), row(1, 1.0), row(0, 0.0), row(9, None), row(3, 1.0)]
    found = compared(first, second)
    assert found.table() == PAIRED and found.scored_by[0] == ["f 1"]
    assert found.by_source["code"].low is found.by_source["code"].high is None


def test_runs_that_do_not_differ_have_no_interval():
    wrong, right = ([row(i, reward) for i in range(2)] for reward in (0.0, 1.0))
    for first, second, said in (
        (wrong, wrong, "+0.0000  none: no prompt differs"),
        (wrong, right, "+1.0000  none: all differ by +1"),
        (wrong[:1], right[:1], "+1.0000  none: one prompt says nothing about others"),
    ):
        assert said in compared(first, second).table()


def test_interval_is_of_the_paired_differences():
    draw = random.Random(3)
    first = [row(i, float(draw.random() < 0.4)) for i in range(60)]
    second = [row(i, float(draw.random() < 0.6)) for i in range(60)]
    found = compared(first, second).overall
    differences = [b["reward"] - a["reward"] for a, b in zip(first, second, strict=True)]
    normal = 1.96 * numpy.std(differences) / 60**0.5  # of so many, nearly the same
    middle = numpy.mean(differences)
    bounds = [middle, middle - normal, middle + normal]
    assert [found.difference, found.low, found.high] == pytest.approx(bounds, abs=0.02)
    assert compared(first, second).overall == found  # drawn with a seed


def test_runs_that_cannot_be_compared_are_refused_by_name():
    for second, said in (
        ([row(0, 1.0, prompt="?")], "different data: the prompt of row 0 is '0[?]' in the"),
        ([row(0, 1.0, "code")], "different data: the data_source of row 0 is 'math'"),
        ([row(0, 1.0, ground_truth="5")], "the ground_truth of row 0 is None in the first and '5'"),
        ([row(3, 1.0)], "no prompt in common that both scored"),
        ([{"number": 0}], "b.jsonl, line 1: a row of `inf eval` has number and reward"),
        ([row(0, "good")], "b.jsonl, line 1: reward must be a number or null, not 'good'"),
    ):
        with pytest.raises(ConfigError, match=said):
            compared([row(0, 1.0)], second)
    with pytest.raises(ConfigError, match=r"--reward: a\.jsonl is of inf eval"):
        compare_runs(FIRST, SECOND, "acc")


def test_command_writes_the_comparison(command):
    write(FIRST, [row(i, 0.0) for i in range(30)])
    write(SECOND, [row(i, float(i < 25)) for i in range(30)])
    asked = ("eval", "compare", FIRST, SECOND)
    for options in ((), ("--out", "compare.json")):  # the second one replaces the first
        code, said, err = command(*asked, *options)
        assert code == 0 and "comparison: compare.json" in err
    assert "better: 25, worse: 0, equal: 5" in said and "and 5 more, in the JSON file" in said
    found = json.loads(command(*asked, "--json")[1])
    assert found == json.loads(Path("compare.json").read_text()) and len(found["changed"]) == 25
    assert found["by_source"]["math"]["difference"] == pytest.approx(5 / 6)


def test_runs_scored_by_different_rewards_are_compared_with_that_said():
    def by(*names: str) -> Rows:
        return [row(i, 0.0, scored_by=name) for i, name in enumerate(names)]

    for first, second, said in (
        (["a.py:f 12"], ["/moved/a.py:f 12"], ""),
        (["a.py:f 12"], ["a.py:f 34"], "Not scored by the same reward function"),
        (["agent loop game 1", "f 12"], ["agent loop game 2", "f 12"], "Not scored by the same"),
    ):
        found = compared(by(*first), by(*second))
        assert said in found.table() and ("scored by" in found.table()) is bool(said)
