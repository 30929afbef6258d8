"""`inf.evaluate` on the real engine: rows, metrics, resuming, errors of single rows."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from typing import Any

import pandas
import pytest
import yaml

import inf
from inf import ConfigError
from tests.support.json_lines import read
from tests.support.scripts import INF, START_SECONDS, TINY, alive, script, until
from tests.support.tiny import tiny_model
from tests.support.verl_rows import verl_rows

PARAMS: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 12, "ignore_eos": True}
N = 4


def even_length() -> Callable[..., dict[str, Any]]:
    """A reward that any text has. Inside a function, so that its process need not import this
    module, and verl with it."""

    def even(solution_str: str, **rest: Any) -> dict[str, Any]:
        return {"score": float(len(solution_str) % 2 == 0), "length": len(solution_str)}

    return even


def but_reward(row: dict[str, Any]) -> dict[str, Any]:
    """The row of an answer that may not be scored yet."""
    names = ("reward", "reward_extra", "scored_by")
    return {name: value for name, value in row.items() if name not in names}


@pytest.mark.verl
def test_parquet_of_verls_form_is_scored_as_verl_scores_it(tiny, tmp_path):
    from verl.utils.reward_score import default_compute_score

    pandas.DataFrame(verl_rows(5)).to_parquet(tmp_path / "test.parquet")
    how: dict[str, Any] = {"n": N, "out": tmp_path / "run", "reward_workers": 0, **PARAMS}
    report = inf.evaluate(tiny, tmp_path / "test.parquet", **how)
    assert [(row["number"], row["sample"]) for row in report.rows] == [
        (number, sample) for number in range(5) for sample in range(N)
    ]
    for row in report.rows:
        theirs = default_compute_score(row["data_source"], row["completion"], row["ground_truth"])
        assert row["reward"] == theirs
    assert f"val-core/openai/gsm8k/reward/mean@{N}" in report.metrics
    assert (report.unscored, report.cut_by_length) == (0, 1.0)
    assert report.completion_tokens == 5 * N * 12
    summary = json.loads((tmp_path / "run.summary.json").read_text())
    assert summary["metrics"] == report.metrics and summary["n"] == N
    assert read(tmp_path / "run.jsonl") == report.rows


def test_evaluation_runs_where_an_event_loop_does(tiny):
    async def cell() -> Any:
        return inf.evaluate(tiny, verl_rows(2), reward=even_length(), max_tokens=4)

    report = asyncio.run(cell())
    assert len(report.metrics) > 0


def test_what_cannot_be_evaluated_is_refused_before_anything_is_asked(tiny):
    asked = tiny.stats()["requests"]
    for name, params in (("n: 2 greedy", {"n": 2, "temperature": 0}), ("limit", {"limit": -1})):
        with pytest.raises(ConfigError, match=f"^{name}"):
            inf.evaluate(tiny, verl_rows(1), reward=even_length(), **params)
    assert tiny.stats()["requests"] == asked


# ─── Killed and resumed ───


@pytest.mark.soak  # two engines of their own
@pytest.mark.verl
def test_killed_run_is_resumed_without_a_lost_row(tmp_path):
    prompts = 10
    pandas.DataFrame(verl_rows(prompts)).to_parquet(tmp_path / "test.parquet")
    few = {**TINY, "max_num_seqs": 2}  # so that there is a middle
    config = {"model_path": str(tiny_model()), "rollout": few}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    command = ["eval", str(tmp_path / "test.parquet"), "-c", str(tmp_path / "config.yaml")]
    command += ["-n", str(N), "--temperature", "1", "--ignore-eos", "--out", str(tmp_path / "run")]
    out = tmp_path / "run.jsonl"

    def whole_lines() -> list[bytes]:
        text = out.read_bytes() if out.exists() else b""
        return text.splitlines() if text.endswith(b"\n") else text.splitlines()[:-1]

    with script(INF, tmp_path / "first", arguments=command) as run:
        ended = run._popen.poll
        assert until(lambda: len(whole_lines()) >= 5 or ended() is not None, START_SECONDS)
        run.meet()
        run.send(signal.SIGKILL)
        run.exit_code()
        assert until(lambda: not alive(run.family), 10)
        before = whole_lines()
        assert 5 <= len(before) < prompts * N, run.err
    with script(INF, tmp_path / "second", arguments=command) as run:
        assert run.exit_code(START_SECONDS) == 0, run.err
    found = [json.loads(line) for line in whole_lines()]
    assert [(row["number"], row["sample"]) for row in found] == [
        (number, sample) for number in range(prompts) for sample in range(N)
    ]
    answers = {row["line"]: but_reward(row) for row in found}
    kept = {row["line"]: but_reward(row) for row in map(json.loads, before)}
    assert answers.items() >= kept.items()
    summary = json.loads((tmp_path / "run.summary.json").read_text())
    assert summary["answers"] == prompts * N and {row["reward"] for row in found} <= {0.0, 1.0}
