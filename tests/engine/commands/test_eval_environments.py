"""`inf.evaluate` and `inf eval` with environments, on a model that really calls."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest

import inf
from _inf.apps.cli import main
from _inf.apps.eval.environments import factory_of_file
from inf import ConfigError
from tests.support import environments as kinds
from tests.support.pages import ROOT, blocks
from tests.support.refusals import refused
from tests.support.tool_calling import answer, question

ROWS: list[dict[str, Any]] = [
    {"prompt": question("12 * 7"), "index": 1},
    {"prompt": question("12 * 7", "3 + 4"), "index": 2},
    {"prompt": "What is", "shows": " 12 + 7?"},
]


def length(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]
) -> float:
    return float(len(solution_str) > 0) + extra_info["rollout_reward_scores"]["environment"]


def test_rewards_are_the_environments_and_rows_resume(caller, tmp_path):
    out = tmp_path / "rows"
    call: dict[str, Any] = {"environment_factory": kinds.Sums, "out": out}
    report = inf.evaluate(caller, ROWS, **call)
    assert [row["reward"] for row in report.rows] == [1.0, 2.0, 1.0]
    assert all(row["scored_by"].startswith("environment Sums ") for row in report.rows)
    assert [row["completion"] for row in report.rows][::2] == [answer("84"), answer("19")]
    assert report.reward == "environment Sums"
    assert report.metrics["val-core/unknown/reward/mean@1"] == pytest.approx(4 / 3)
    before = caller.stats()["requests"]
    again = inf.evaluate(caller, ROWS, **call)
    assert again.rewards_kept == 3 and caller.stats()["requests"] == before
    with refused(ConfigError, "environment Counter|environment Sums"):
        inf.evaluate(caller, ROWS, **{**call, "environment_factory": kinds.Counter})
    with pytest.warns(UserWarning, match="scored again"):
        judged = inf.evaluate(caller, ROWS, reward=length, reward_workers=0, **call)
    assert [row["reward"] for row in judged.rows] == [2.0, 3.0, 2.0]
    assert "length" in judged.reward
    assert caller.stats()["requests"] == before


def test_row_without_any_reward_says_so(caller):
    with pytest.warns(UserWarning):
        report = inf.evaluate(caller, ROWS[:1], environment_factory=kinds.Counter)
    [row] = report.rows
    assert report.unscored == 1 and row["completion"] == answer("11")
    assert "the environment gave no reward, and" in row["error"]["message"]


def test_command_of_the_page_prints_the_rewards(tmp_path, monkeypatch, capsys):
    (tmp_path / "homework.py").write_text(blocks("docs/environments.md", "python")[0])
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    _, block = blocks("docs/environments.md", "bash")
    rows, command = block.split(".venv/bin/inf ")
    subprocess.run(["bash", "-ec", rows], check=True)
    assert main(shlex.split(command)) == 0
    [figure] = blocks("docs/environments.md", "text")
    assert figure in capsys.readouterr().out


def test_factory_that_is_not_there_and_columns_by_hand_are_refused(caller):
    for named, says in (
        ("Sums", "name a file and a factory"),
        ("nowhere.py:Sums", "there is no file"),
        (f"{kinds.__file__}:Sum", "nothing named 'Sum'"),
    ):
        with refused(ConfigError, says):
            factory_of_file(named)
    with refused(ConfigError, "gets the columns of its row", key="environment_kwargs"):
        inf.evaluate(caller, ROWS, environment_factory=kinds.Sums, environment_kwargs={"index": 3})
