"""`inf eval compare`: paired differences of two runs, their intervals, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy
import pytest

from _inf.apps.cli import main
from _inf.apps.eval.compare import Comparison, compare_runs
from _inf.errors import ConfigError


def row(number: int, reward: float | None, source: str = "math", **more: Any) -> dict[str, Any]:
    return {
        "number": number,
        "data_source": source,
        "prompt": f"{number}?",
        "reward": reward,
    } | more


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    lines = [json.dumps({"line": line, **each}) for line, each in enumerate(rows, 1)]
    path.write_text("\n".join(lines) + "\n")
    return path


def compared(
    tmp_path: Path, first: list[dict[str, Any]], second: list[dict[str, Any]]
) -> Comparison:
    return compare_runs(write(tmp_path / "a.jsonl", first), write(tmp_path / "b.jsonl", second))


def test_rows_are_paired_by_their_number_whatever_the_order_and_the_answers_per_prompt(
    tmp_path: Path,
) -> None:
    first = [row(0, 1.0), row(0, 0.0), row(1, 0.0), row(1, None), row(5, 1.0, "code")]
    first += [row(1, 0.0, line=4)]  # of a resumed run: the later row of the line counts
    second = [row(5, 1.0, "code"), row(1, 1.0), row(0, 0.0)]
    found = compared(tmp_path, first, second)
    assert [(each.number, each.a, each.b) for each in found.changed] == [(1, 0, 1), (0, 0.5, 0)]
    assert list(found.by_source) == ["math", "code"]
    whole, code = found.overall, found.by_source["code"]
    assert (whole.prompts, whole.a, whole.b) == (3, pytest.approx(0.5), pytest.approx(2 / 3))
    assert whole.difference == pytest.approx(whole.b - whole.a)
    assert (code.prompts, code.difference, code.low, code.high) == (1, 0.0, None, None)
    assert "better: 1, worse: 1, equal: 1" in found.table()
    assert "row 1: 0 -> 1 (math)" in found.table()


def test_interval_is_of_the_paired_differences(tmp_path: Path) -> None:
    draw = random.Random(3)
    first = [row(i, float(draw.random() < 0.4)) for i in range(60)]
    second = [row(i, float(draw.random() < 0.6)) for i in range(60)]
    found = compared(tmp_path, first, second).overall
    differences = [b["reward"] - a["reward"] for a, b in zip(first, second, strict=True)]
    assert found.difference == pytest.approx(numpy.mean(differences))
    normal = 1.96 * numpy.std(differences) / len(differences) ** 0.5  # of so many, nearly the same
    assert (found.low, found.high) == (
        pytest.approx(found.difference - normal, abs=0.02),
        pytest.approx(found.difference + normal, abs=0.02),
    )
    assert compared(tmp_path, first, second).overall == found  # drawn with a seed
    shifts = [0.24, 0.26] * 30
    shifted = [each | {"reward": each["reward"] + s} for each, s in zip(first, shifts, strict=True)]
    pairs = compared(tmp_path, first, shifted).overall
    assert 0.24 < pairs.low < 0.25 < pairs.high < 0.26  # paired: the prompts' own spread is gone


def test_differences_that_are_all_equal_have_no_interval(tmp_path: Path) -> None:
    wrong = [row(i, 0.0) for i in range(20)]
    found = compared(tmp_path, wrong, wrong)
    assert (found.overall.low, found.overall.high) == (None, None)
    assert "+0.0000  none: all differences are equal" in found.table()
    assert found.plot() is not None


def test_file_that_is_no_comparison_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        write(tmp_path / f"{name}.jsonl", [row(0, 1.0), row(1, 0.0)])
    Path("compare.json").write_text('{"mine": 1}')
    command = ["eval", "compare", "a.jsonl", "b.jsonl"]
    assert main(command) == 2
    assert "--out: compare.json is no earlier comparison" in capfd.readouterr().err
    assert Path("compare.json").read_text() == '{"mine": 1}'
    assert main([*command, "--out", "b.jsonl"]) == 0 and Path("b.jsonl.json").exists()
    assert main([*command, "--out", "other.json"]) == 0
    assert main([*command, "--out", "other"]) == 0 and len(list(Path().glob("other*"))) == 1


def test_what_is_not_compared_is_counted_and_named(tmp_path: Path) -> None:
    first = [row(0, 1.0), row(1, None), row(2, 0.0), row(2, None), row(7, 1.0)]
    second = [row(0, 1.0), row(1, 1.0), row(2, 1.0), row(9, None), row(8, 0.0)]
    found = compared(tmp_path, first, second)
    assert (found.only_in_a, found.only_in_b, found.without_reward) == ([7], [8, 9], [1])
    assert found.unscored == (2, 1) and found.overall.prompts == 2
    for line in (
        "only in A, not compared: 1 rows (7)",
        "only in B, not compared: 2 rows (8, 9)",
        "no reward in one of them, not compared: 1 rows (1)",
        "answers without a reward: 2 of A, 1 of B",
    ):
        assert line in found.table()


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([row(0, 1.0) | {"prompt": "?"}], "different data: the prompt of row 0 is '0[?]' in the"),
        ([row(0, 1.0, "code")], "different data: the data_source of row 0 is 'math'"),
        (
            [row(0, 1.0, ground_truth="5")],
            "different data: the ground_truth of row 0 is '4' in the first and '5' in the second",
        ),
        ([row(3, 1.0)], "no prompt in common that both scored"),
        ([row(0, None)], "no prompt in common that both scored"),
        ([], "b.jsonl: it has no rows"),
        ([{"completion": "?"}], "b.jsonl, line 1: a row of `inf eval` has number and reward"),
        ([row(0, "good")], "b.jsonl, line 1: reward must be a number or null, not 'good'"),  # type: ignore[arg-type]
        ('{"line": 2, "numb', r"b.jsonl, line 1: it is not JSON \(the file ends .*resume it first"),
        (None, "b.jsonl cannot be read"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused_by_name(
    second: Any, said: str, tmp_path: Path
) -> None:
    first = write(tmp_path / "a.jsonl", [row(0, 1.0, ground_truth="4")])
    file = tmp_path / "b.jsonl"
    if isinstance(second, list):
        write(file, second)
    elif second:
        file.write_text(second)
    with pytest.raises(ConfigError, match=said):
        compare_runs(first, file)


def test_command_writes_the_comparison_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = write(tmp_path / "a.jsonl", [row(i, 0.0) for i in range(30)])
    second = write(tmp_path / "b.jsonl", [row(i, float(i < 25)) for i in range(30)])
    command = ["eval", "compare", str(first), str(second), "--out", str(tmp_path / "found")]
    assert main(command) == 0 and not list(tmp_path.glob("*.png"))
    out, err = capsys.readouterr()
    assert "better: 25, worse: 0, equal: 5" in out and "and 5 more, in the JSON file" in out
    assert f"comparison: {tmp_path / 'found.json'}" in err
    assert main([*command, "--json", "--plot", str(tmp_path / "found.png")]) == 0
    assert (tmp_path / "found.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(capsys.readouterr().out)
    assert found == json.loads((tmp_path / "found.json").read_text())
    assert len(found["changed"]) == 25
    assert found["by_source"]["math"]["difference"] == pytest.approx(5 / 6)


def test_runs_scored_by_different_rewards_are_compared_with_that_said(tmp_path: Path) -> None:
    def by(name: str | None, reward: float) -> list[dict[str, Any]]:
        return [row(i, reward, **({"scored_by": name} if name else {})) for i in range(3)]

    same = compared(tmp_path, by("a.py:f 12ab", 0.0), by("/moved/a.py:f 12ab", 1.0))
    assert same.same_reward and "scored by" not in same.table()
    other = compared(tmp_path, by("a.py:f 12ab", 0.0), by("a.py:f 34cd", 1.0))
    said = other.table()
    assert not other.same_reward and "Not scored by the same reward function" in said
    assert "A was scored by a.py:f 12ab" in said and "B was scored by a.py:f 34cd" in said
    assert json.loads(other.json())["scored_by"] == [["a.py:f 12ab"], ["a.py:f 34cd"]]
    loop = [*by("agent loop game 1", 0.0)[:2], *by("a.py:f 12ab", 0.0)[2:]]  # some by their loop
    assert compared(tmp_path, loop, loop).same_reward
    edited = [*by("agent loop game 2", 0.0)[:2], *by("a.py:f 12ab", 0.0)[2:]]
    assert not compared(tmp_path, loop, edited).same_reward
    for unsure in ("judge 12ab?", None):  # uses what cannot be compared; rows that do not say it
        found = compared(tmp_path, by(unsure, 0.0), by(unsure, 1.0))
        assert not found.same_reward and "Maybe not scored by the same" in found.table()
    mixed = [*by("f 1", 0.0)[:2], *by("f 2", 0.0)[2:]]
    assert not compared(tmp_path, mixed, mixed).same_reward
