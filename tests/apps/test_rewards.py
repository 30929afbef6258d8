"""Reward functions: what they return and how they fail, a call at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from scripts import GONE_SECONDS, alive, until

from _inf.apps.eval.reward import RewardError, RewardPool, RewardProcess, function_name
from _inf.errors import ConfigError

FUNCTIONS = """
import asyncio, math, os, time
import numpy

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {
        "float": 0.5,
        "numpy": numpy.float32(0.25),
        "true": True,
        "dict": {"score": 1.0, "pred": "7", "all": [data_source, ground_truth, extra_info]},
        "nan": math.nan,
        "none": None,
        "text": "good",
        "no score": {"acc": 1},
        "object": {"score": 1, "what": object()},
    }[solution_str]

async def later(data_source, solution_str, ground_truth, extra_info=None):
    await asyncio.sleep(0.01)
    return float(solution_str)

def troubled(data_source, solution_str, ground_truth, extra_info=None):
    if solution_str == "raise":
        raise KeyError("no such thing")
    if solution_str == "hang":
        time.sleep(600)
    if solution_str == "die":
        os._exit(3)
    return os.getpid()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("rewards") / "rewards.py"
    path.write_text(FUNCTIONS)
    return path


def score(pool: RewardPool, text: str) -> Any:
    return pool.submit("source", text, "truth", {"index": 3}).result(60)


def test_numbers_and_dicts_are_rewards_and_everything_else_says_what_it_is(file: Path) -> None:
    with RewardPool(f"{file}:compute_score") as pool:
        assert [score(pool, each).value for each in ("float", "numpy", "true")] == [0.5, 0.25, 1.0]
        full = score(pool, "dict")
        assert full.value == 1.0 and full.extra["pred"] == "7"
        assert full.extra["all"] == ["source", "truth", {"index": 3}]
        for text, said in {
            "nan": "finite number, not nan",
            "none": "a number, not None",
            "text": "a number, not 'good'",
            "no score": "must have 'score'",
            "object": "TypeError: Object of type object is not JSON",
        }.items():
            with pytest.raises(RewardError, match=said):
                score(pool, text)


def test_async_function_is_awaited(file: Path) -> None:
    with RewardPool(f"{file}:later") as pool:
        assert score(pool, "0.75").value == 0.75


def test_call_that_raises_hangs_or_dies_fails_alone(file: Path) -> None:
    with RewardPool(f"{file}:troubled", seconds=2) as pool:
        first = {score(pool, "x").value for _ in range(4)}
        with pytest.raises(
            RewardError, match=r"raised KeyError: 'no such thing' \(rewards.py, line \d+\)"
        ):
            score(pool, "raise")
        assert score(pool, "x").value in first  # the process goes on
        with pytest.raises(RewardError, match="took longer than 2 s"):
            score(pool, "hang")
        with pytest.raises(RewardError, match="ended with exit code 3"):
            score(pool, "die")
        assert all(score(pool, "x").value > 0 for _ in range(4))


def test_calls_under_way_end_with_the_pool(file: Path) -> None:
    with RewardPool(f"{file}:troubled") as pool:
        score(pool, "x")
        call = pool.submit("source", "hang", "truth", {})
        time.sleep(0.5)
    with pytest.raises(RewardError, match="exit code -9"):
        call.result(10)


def test_process_in_a_call_dies_with_its_parent(file: Path) -> None:
    program = (
        "from _inf.apps.eval.reward import RewardPool\n"
        f"with RewardPool({f'{file}:troubled'!r}) as pool:\n"
        "    print(int(pool.submit('s', 'x', 't', {}).result().value), flush=True)\n"
        "    pool.submit('s', 'hang', 't', {})\n"
        "    pool.submit('s', 'hang', 't', {}).result()\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    command, env = [sys.executable, "-c", program], {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert until(lambda: not alive({child}), GONE_SECONDS)


def test_function_of_a_notebook_runs_though_no_file_has_it() -> None:
    bonus = 0.5
    with RewardPool(lambda solution_str, **rest: len(solution_str) + bonus) as pool:
        assert score(pool, "four").value == 4.5


@pytest.mark.parametrize(
    ("named", "said"),
    [("rewards.py", "FILE.py:compute_score"), ("missing.py:compute_score", "no file missing.py")],
)
def test_name_of_another_form_or_without_a_file_is_refused(named: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RewardPool(named)


def test_function_that_the_file_lacks_is_named(file: Path) -> None:
    with (
        RewardPool(f"{file}:compute_scor") as pool,
        pytest.raises(RewardError, match="no attribute 'compute_scor'"),
    ):
        score(pool, "x")


def test_source_that_verls_function_does_not_know_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from verl.utils.reward_score import default_compute_score

    def in_process(process: RewardProcess, arguments: dict[str, Any], seconds: float) -> Any:
        try:
            return default_compute_score(**arguments)
        except Exception as failure:  # as its process says it
            raise RewardError(
                f"the reward function raised {type(failure).__name__}: {failure}"
            ) from None

    monkeypatch.setattr(RewardProcess, "call", in_process)
    with RewardPool(None) as pool:
        assert pool.submit("openai/gsm8k", "#### 5", "5", {}).result(60).value == 1.0
        with pytest.raises(ConfigError, match="data_source 'own': .* give a function of your own"):
            pool.submit("own", "#### 5", "5", {}).result(60)


def test_runs_are_described_by_the_functions_name(file: Path) -> None:
    assert function_name(None).endswith("default_compute_score")
    assert function_name("a.py:b") == "a.py:b"
    assert function_name(score) == "score"
