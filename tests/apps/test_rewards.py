"""Reward functions: what they return and how they fail, a call at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from anyio.from_thread import start_blocking_portal

from _inf.apps.code_version import CodeVersion
from _inf.apps.eval import reward_pool
from _inf.apps.eval.reward import Reward, RewardError
from _inf.apps.eval.reward_pool import RewardPool, RewardWorker, reward_workers
from _inf.apps.eval.reward_process import ARGUMENTS
from _inf.apps.eval.scoring import Judges
from _inf.errors import ConfigError
from tests.support.scripts import GONE_SECONDS, alive, environment, until

FUNCTIONS = """
import asyncio, json, math, os, subprocess, sys, time
import numpy

itself = {"score": 1}
itself["all"] = [itself]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {
        "float": 0.5,
        "numpy": numpy.float32(0.25),
        "true": True,
        "dict": {"score": 1.0, "pred": "7", "all": [data_source, ground_truth, extra_info]},
        "nan": math.nan,
        "none": None,
        "no score": {"acc": 1},
        "object": {"score": 1, "what": object()},
        "extra nan": {"score": 1, "acc": math.nan},
        "deep": {"score": 1, "tree": json.loads("[" * 400 + "]" * 400)},
        "itself": itself,
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

under_way = 0

async def five(solution_str, **rest):
    global under_way
    under_way += 1
    while under_way < 5 or solution_str == "hang":
        await asyncio.sleep(0.01)
    return os.getpid()

def parent(solution_str, **rest):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(solution_str, "w") as file:
        file.write(str(child.pid))
    if solution_str.endswith("die"):
        os._exit(3)
    if solution_str.endswith("hang"):
        time.sleep(600)
    return child.pid

async def keeps_the_interpreter(solution_str, **rest):
    if solution_str == "again":
        return os.getpid()
    sys.setswitchinterval(1000)  # as a call in C does that never lets other threads run
    while True:
        pass

def two(solution_str, **rest):
    open(f"{solution_str}/{os.getpid()}", "w").close()
    while len(os.listdir(solution_str)) < 2:
        time.sleep(0.01)
    return os.getpid()
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rewards") / "rewards.py"
    path.write_text(FUNCTIONS)
    return path


class Pool:
    """A `RewardPool` for tests that wait for it, as an evaluation does."""

    def __init__(self, *args: Any, **how: Any) -> None:
        self.pool = RewardPool(*args, **how)

    def __enter__(self) -> Pool:
        with contextlib.ExitStack() as stack:
            self._portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(self._portal.wrap_async_context_manager(self.pool))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.__exit__(*exc_info)

    def submit(self, *arguments: Any) -> Future[Reward]:
        named = dict(zip(ARGUMENTS, arguments, strict=True))
        return self._portal.start_task_soon(self.pool.score, named)


def score(pool: Pool, text: str) -> Any:
    return pool.submit("source", text, "truth", {"index": 3}).result(60)


def test_numbers_and_dicts_are_rewards_and_everything_else_says_what_it_is(file):
    with Pool(str(file)) as pool:  # verl's own name of a function
        assert [score(pool, each).value for each in ("float", "numpy", "true")] == [0.5, 0.25, 1.0]
        full = score(pool, "dict")
        assert full.value == 1.0 and full.extra["pred"] == "7"
        assert full.extra["all"] == ["source", "truth", {"index": 3}]
        for text, said in {
            "nan": "finite number, not nan",
            "none": "a number, not None",
            "no score": "must have 'score'",
            "object": "TypeError: Object of type object is not JSON",
            "extra nan": "'acc' must be finite .*, not nan",
            "deep": "'tree' must be .* nested at most 100 levels deep",
            "itself": "ValueError: Circular reference",
        }.items():
            with pytest.raises(RewardError, match=said):
                score(pool, text)


def test_odd_value_beside_the_score_of_an_agent_loop_is_an_error_of_its_row():
    pool = SimpleNamespace(version=CodeVersion("reward", "0"))
    judges = Judges(pool, {"mine": CodeVersion("loop mine", "1")})
    for odd in (10**400, {1: 2}):
        row = {"agent_loop": "mine", "reward_scores": {"reward_score": 1.0}}
        row["extra_fields"] = {"reward_extra_info": {"acc": odd}}
        scored = asyncio.run(judges.scored(row, lambda row: {}))
        assert scored["reward"] is None
        assert "a reward's 'acc' must be finite" in scored["error"]["message"]


def test_async_function_is_awaited_and_one_of_a_notebook_runs_though_no_file_has_it(file):
    bonus = 0.5
    with Pool(f"{file}:later") as pool:
        assert score(pool, "0.75").value == 0.75
    with Pool(lambda solution_str, **rest: asyncio.sleep(0.01, len(solution_str) + bonus)) as pool:
        assert score(pool, "four").value == 4.5


def test_call_that_raises_hangs_or_dies_fails_alone(file):
    with Pool(f"{file}:troubled", seconds=1) as pool:
        first = {score(pool, "x").value for _ in range(4)}
        lines = file.read_text().splitlines()
        line = next(n for n, text in enumerate(lines, 1) if "no such thing" in text)
        with pytest.raises(
            RewardError, match=rf"raised KeyError: 'no such thing' \(rewards.py, line {line}\)"
        ):
            score(pool, "raise")
        assert score(pool, "x").value in first  # the process goes on
        with pytest.raises(RewardError, match="took longer than 1 s"):
            score(pool, "hang")
        with pytest.raises(RewardError, match="ended with exit code 3"):
            score(pool, "die")
        assert all(score(pool, "x").value > 0 for _ in range(4))


def test_async_calls_of_one_worker_run_side_by_side_and_a_late_one_fails_alone(file):
    with Pool(f"{file}:five", seconds=2, workers=1) as pool:
        late, *others = [
            pool.submit("source", text, "truth", {}) for text in ("hang", *"abcd")
        ]  # each of the five waits for the others
        assert len({call.result(60).value for call in others}) == 1
        with pytest.raises(RewardError, match="longer than 2 s"):
            late.result(60)
        assert score(pool, "x").value == others[0].result().value  # the process goes on


def test_sync_calls_run_in_as_many_processes_as_asked_for(file, tmp_path):
    with Pool(f"{file}:two", seconds=60, workers=2) as pool:
        calls = [pool.submit("source", str(tmp_path), "truth", {}) for _ in range(2)]
        assert len({call.result(60).value for call in calls}) == 2
    assert reward_workers(None) in range(1, 9)
    with pytest.raises(ConfigError, match="reward_workers: it must be 0 or more, not -1"):
        RewardPool(None, workers=-1)


def test_without_workers_the_callers_own_objects_are_used_and_a_late_call_is_left_behind():
    seen, gate = list[str](), threading.Event()

    def judge(solution_str: str, **rest: Any) -> int:
        seen.append(solution_str)
        if solution_str == "hang":
            gate.wait(60)
        return os.getpid()

    async def later(**rest: Any) -> int:
        return os.getpid()

    with Pool(judge, seconds=1, workers=0) as pool:
        assert score(pool, "a").value == os.getpid()
        with pytest.raises(RewardError, match="longer than 1 s"):
            score(pool, "hang")
        assert score(pool, "b").value == os.getpid() and seen == ["a", "hang", "b"]
        gate.set()
    with Pool(later, workers=0) as pool:
        assert score(pool, "a").value == os.getpid()


def test_calls_under_way_end_with_the_pool(file):
    with pytest.raises(KeyboardInterrupt), Pool(f"{file}:troubled") as pool:
        child = psutil.Process(int(score(pool, "x").value))
        call = pool.submit("source", "hang", "truth", {})
        time.sleep(0.2)
        raise KeyboardInterrupt
    assert call.cancelled() and not alive({child})


def test_process_in_a_call_dies_with_its_parent(file):
    program = (
        "import asyncio, sys\n"
        "from _inf.apps.eval.reward_pool import RewardPool\n"
        "async def main():\n"
        "    async with RewardPool(sys.argv[1]) as pool:\n"
        "        call = dict(data_source='s', ground_truth='t', extra_info={})\n"
        "        print(int((await pool.score({**call, 'solution_str': 'x'})).value), flush=True)\n"
        "        await pool.score({**call, 'solution_str': 'hang'})\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", program, f"{file}:troubled"]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    assert until(lambda: not alive({child}), GONE_SECONDS)


def test_what_a_reward_function_started_ends_with_its_process(file, tmp_path):
    ends = ("die", "hang", "return")
    with Pool(f"{file}:parent", seconds=1, workers=3) as pool:
        calls = {end: pool.submit("s", str(tmp_path / end), "t", {}) for end in ends}
        for end in ("die", "hang"):
            with pytest.raises(RewardError):
                calls[end].result(60)
        calls["return"].result(60)
    for end in calls:
        started = int((tmp_path / end).read_text())
        assert until(lambda: not psutil.pid_exists(started), GONE_SECONDS)  # noqa: B023


def test_time_limit_holds_while_a_function_reads_nothing(file, monkeypatch):
    monkeypatch.setattr(reward_pool, "GRACE_SECONDS", 0.5)
    large = "x" * 10_000_000  # more than a connection holds
    with Pool(f"{file}:keeps_the_interpreter", seconds=1, workers=1) as pool:
        calls = [pool.submit("source", text, "truth", {}) for text in ("a", large, large)]
        for call in calls:
            with pytest.raises(RewardError, match="longer than 1 s"):
                call.result(30)
        assert score(pool, "again").value > 0  # in a new process


def test_row_that_cannot_be_sent_is_an_error_of_its_call(file):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with Pool(str(file), workers=1) as pool:
        for odd in (deep, threading.Lock()):
            with pytest.raises(RewardError, match="the row cannot be sent to the process"):
                pool.submit("source", "float", "truth", {"odd": odd}).result(60)
        assert score(pool, "float").value == 0.5


UNUSABLE = {
    "def compute_scor(**rest): ...": "no function named 'compute_score'; did you mean",
    "import nothing_of_that_name": "ModuleNotFoundError: .*nothing_of_that_name",
    "def compute_score(:": "SyntaxError",
    "def compute_score(answer): ...": "missing a required argument: 'answer'.*keywords data_",
}


def test_function_that_cannot_be_found_or_loaded_is_refused_with_the_reason():
    for named, said in (
        ("rewards", "FILE.py:compute_score"),
        (3, "must be a function, not 3"),
        ("missing.py", "no file missing.py"),
    ):
        with pytest.raises(ConfigError, match=said):
            RewardPool(named)
    for number, (text, said) in enumerate(UNUSABLE.items()):
        Path(f"reward{number}.py").write_text(text)
        with pytest.raises(ConfigError, match=said), Pool(f"reward{number}.py", workers=number % 2):
            pass


@pytest.mark.verl
def test_source_that_verls_function_does_not_know_ends_the_run(monkeypatch):
    from verl.utils.reward_score import default_compute_score

    async def here(worker: RewardWorker, arguments: dict[str, Any], seconds: float) -> Any:
        with pytest.raises(NotImplementedError) as raised:
            default_compute_score(**arguments)
        raise RewardError("as its process says it", type(raised.value).__name__)

    monkeypatch.setattr(RewardWorker, "call", here)
    with (
        Pool(None) as pool,
        pytest.raises(ConfigError, match="data_source 'source': .* give a function of your own"),
    ):
        score(pool, "#### 5")
