"""`inf eval` and `inf batch` with agent loops on the real engine: columns, scores, resuming, what
is said of ids that were not sampled."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import yaml

import inf
from inf import ConfigError
from tests.support import agent_loops_for_eval as loops
from tests.support.engines import started
from tests.support.json_lines import read, write
from tests.support.verl_rows import verl_rows

pytestmark = pytest.mark.verl

PARAMS: dict[str, Any] = {"max_tokens": 6}
OPTIONS = ("--max-tokens", 6)
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return {"score": 0.5, "turns": extra_info["num_turns"], "given": sorted(extra_info)}
"""

rows = functools.partial(verl_rows, extra={"interaction_kwargs": {"name": "gsm8k"}})


def half() -> Callable[..., float]:
    """A reward. Inside a function, so that its process need not import this module."""

    def reward(**rest: Any) -> float:
        return 0.5

    return reward


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "rows.jsonl", rows(3))
    Path("reward.py").write_text(REWARD)
    return tmp_path


# ─── Rows ───


def test_parquets_columns_go_to_run_as_verls_trainer_gives_them(tiny, tmp_path):
    data = rows(3, level=2)
    data[1]["agent_name"] = "scores_itself"
    pandas.DataFrame(data).to_parquet(tmp_path / "test.parquet")
    own = {"agent_loop": "two_turns", "agent_kwargs": {"judge": "own"}, "reward": half(), **PARAMS}
    report = inf.evaluate(tiny, tmp_path / "test.parquet", **own)
    assert [row["agent_loop"] for row in report.rows] == ["two_turns", "scores_itself", "two_turns"]
    columns = report.rows[2]["extra_fields"]["columns"]
    row = {name: value for name, value in data[2].items() if name != "prompt"}
    verls = {"index": 2, "tools_kwargs": {}, "interaction_kwargs": {"name": "gsm8k"}, "uid": "2"}
    assert columns == {**row, **verls, "judge": "own"}
    assert [row["num_turns"] for row in report.rows] == [4] * 3
    assert report.metrics["val-aux/num_turns/mean"] == 4.0
    assert (report.agent_loops, report.unsampled_rows) == ({"two_turns": 2, "scores_itself": 1}, 0)
    assert "answers of agent loops: scores_itself 1, two_turns 2\n" in report.table()
    assert report.parameters["agent_loop"] == "two_turns"


def test_samples_of_a_row_have_seeds_of_their_own_and_rows_without_a_name_no_loop(tiny):
    data, sampled = rows(2), {"n": 3, "temperature": 1.0, "seed": 5, "reward": half(), **PARAMS}
    data[1]["agent_name"] = "two_turns"
    table = pandas.DataFrame(data)
    runs = [inf.evaluate(tiny, each, **sampled) for each in (table, table, rows(2))]
    ids, again, alone = ([row["response_ids"] for row in run.rows] for run in runs)
    assert ids == again and ids[:3] == alone[:3] and len(set(map(str, ids))) == 6
    assert ["agent_loop" in row for row in runs[0].rows] == [False] * 3 + [True] * 3
    assert runs[2].agent_loops == {} and "agent_loops" not in json.loads(runs[2].json())


def test_loops_own_score_is_first_and_the_reward_function_gets_its_fields(on_tiny, folder):
    write(folder / "rows.jsonl", rows(5))
    command = ["eval", "rows.jsonl", "--agent-loop", "scores_itself", "--reward", "reward.py"]
    code, out, err = on_tiny(*command, *OPTIONS)
    assert code == 1 and "answers of agent loops: scores_itself 5; 2 scored by their loop" in out
    assert "agent loop scores_itself: its reward_score is NaN or infinite" in err
    found = read(folder / "eval.jsonl")
    assert [row["reward"] for row in found] == [0.25, 0.5, 0.25, 0.5, None]
    own, judged = found[0], found[1]
    assert own["scored_by"].startswith("agent loop scores_itself ")
    assert (own["reward_scores"], own["reward_extra"]) == ({"reward_score": 0.25}, {"acc": 1.0})
    given = ["index", "interaction_kwargs", "num_turns", "reward_extra_info"]
    assert judged["reward_extra"]["given"] == [*given, "rollout_reward_scores"]
    assert judged["reward_extra"]["turns"] == 4
    Path("reward.py").write_text(REWARD.replace("0.5", "0.75"))
    code, out, err = on_tiny(*command, *OPTIONS)
    assert "resumed 5 of 5 answers, 2 with their rewards; 3 are scored again" in err
    assert [row["reward"] for row in read(folder / "eval.jsonl")][:2] == [0.25, 0.75]


def test_row_that_verls_reward_cannot_score_needs_a_score_of_its_loop(tiny):
    data = rows(2)
    for row in data:
        del row["reward_model"]
    with pytest.warns(UserWarning, match="1 answers have no reward"):
        report = inf.evaluate(tiny, data, agent_loop=loops.ScoresItself, **PARAMS)
    assert report.rows[0]["reward"] == 0.25
    said = "the agent loop gave no reward_score, and row 1: reward_model.ground_truth is missing"
    assert report.rows[1]["error"]["message"].startswith(said)
    data[0]["agent_name"] = "scores_itself"
    with pytest.raises(ConfigError, match="row 1: reward_model.ground_truth is missing"):
        inf.evaluate(tiny, data, **PARAMS)  # without a loop


def test_row_whose_loop_raises_is_an_error_that_is_tried_again(on_tiny, folder):
    command = ["eval", "rows.jsonl", "--agent-loop", "raises", "--reward", "reward.py", *OPTIONS]
    for _ in range(2):
        code, out, err = on_tiny(*command)
        said = "answer 2: row 1 of the data: agent loop raises: ValueError: the game is over"
        assert code == 1 and said in err and "3 answers, 1 without a reward" in out
    assert "resumed 2 of 3 answers, 2 with their rewards" in err
    assert read(folder / "eval.jsonl")[1]["error"]["code"] == "agent_loop_error"


# ─── Ids that were not sampled ───


def test_unsampled_ids_are_counted_and_said_once(on_tiny, folder):
    command = ["eval", "rows.jsonl", "--agent-loop", "renders_again", "--reward", "reward.py"]
    code, out, err = on_tiny(*command, *OPTIONS)
    found = read(folder / "eval.jsonl")
    total = sum(row["unsampled_ids"] for row in found)
    assert code == 0 and total >= 3
    assert all(len(row["unsampled_at"]) == row["unsampled_ids"] for row in found)
    assert f"answers of agent loops: renders_again 3; {total} unsampled ids in 3 answers" in out
    [said] = [line for line in err.splitlines() if "wrong mask" in line]
    place = found[0]["unsampled_at"][0]
    assert f"renders_again, row 0, sample 0: token {place} of the response" in said
    summary = json.loads(Path("eval.summary.json").read_text())
    assert (summary["unsampled_rows"], summary["unsampled_ids"]) == (3, total)
    code, _, err = on_tiny("show", "eval.jsonl")
    assert code == 0 and f"3 rows (3 with {total} unsampled ids) of eval.jsonl" in err
    loaded = inf.load_rollouts("eval.jsonl")
    assert [each.unsampled_at for each in loaded] == [row["unsampled_at"] for row in found]


# ─── Files that are resumed ───


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A YAML file of loops, and their module beside it."""
    folder = tmp_path_factory.mktemp("loops")
    shutil.copy(loops.__file__, folder / "loops_of_a_file.py")
    entries = [
        {"name": "listed", "_target_": "loops_of_a_file.TwoTurns"},
        {"name": "renders", "_target_": "loops_of_a_file.RendersAgain"},
    ]
    (folder / "loops.yaml").write_text(yaml.safe_dump(entries))
    return folder


@pytest.fixture(scope="module")
def agent(files):
    return {"agent_loop_config_path": str(files / "loops.yaml"), "default_agent_loop": "renders"}


@pytest.fixture(scope="module")
def listing(agent):
    """An engine with these loops, one of them by default."""
    with started(name="hf", agent=agent) as engine:
        yield engine


@pytest.fixture
def on_listing(listing, agent, command, folder, monkeypatch):
    """The command on this engine, with its keys of loops."""
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(listing))
    keys = [("--set", f"rollout.agent.{name}={value}") for name, value in agent.items()]
    return lambda *words: command(*words, *OPTIONS, *sum(keys, ()))


def test_file_of_another_version_of_its_loop_is_refused_by_name(on_listing, listing, files):
    chosen = ("eval", "rows.jsonl", "--reward", "reward.py", "--agent-loop", "listed")
    assert on_listing(*chosen, "--limit", 1)[0] == 0
    asked = listing.stats()["requests"]
    code, _, err = on_listing(*chosen)
    assert code == 0 and "resumed 1 of 3 answers" in err
    assert listing.stats()["requests"] == asked + 2
    module, entries = files / "loops_of_a_file.py", files / "loops.yaml"
    texts = {path: path.read_text() for path in (module, entries)}
    module.write_text(f"{texts[module]}\n# a comment\n")
    assert on_listing(*chosen)[0] == 0
    changes = {
        module: texts[module].replace("num_turns=4", "num_turns=6"),
        entries: texts[entries].replace("name: listed", "name: listed\n  ask: Go on."),
    }
    for path, text in changes.items():
        path.write_text(text)
        code, _, err = on_listing(*chosen)
        assert code == 2 and "eval.jsonl was started with agent loop listed='version " in err
        assert "start again with --restart" in err
        path.write_text(texts[path])
    assert on_listing(*chosen, "--restart")[0] == 0


# ─── What is refused, before anything is asked ───


def test_what_no_loop_can_answer_is_refused(tiny):
    asked, kwargs = tiny.stats()["requests"], {"agent_kwargs": {"ability": "x"}}
    for params, agent_name, says in (
        ({}, "nobody", "row 0: agent_name: no agent loop has the name 'nobody'"),
        (kwargs, "two_turns", "agent_kwargs.ability: row 0 has a column of that name"),
        ({"regex": "a"}, "two_turns", "row 0: agent_name: regex: cannot be used with agent_loop"),
    ):
        with pytest.raises(ConfigError, match=says):
            inf.evaluate(tiny, rows(2, agent_name=agent_name), reward=half(), **params)
    assert tiny.stats()["requests"] == asked


# ─── A file of prompts ───


def test_batch_writes_the_default_loops_rows_in_each_form(on_listing, folder):
    asked = [{"role": "user", "content": "Count."}]
    lines = [
        {"prompt": "Count."},
        {"messages": asked},
        {"custom_id": "a", "body": {"messages": asked}},
    ]
    write(folder / "in.jsonl", lines)
    batch = ("batch", "in.jsonl", "--temperature", 0)
    code, _, err = on_listing(*batch, "out.jsonl")
    first, second, third = read(folder / "out.jsonl")
    assert code == 0
    [choice] = third["response"]["body"]["choices"]
    for said in (first, second["metadata"], choice):
        assert (said["agent_loop"], said["num_turns"]) == ("renders", 4)
        assert said["unsampled_ids"] == first["unsampled_ids"] > 0
        assert (said["extra_fields"], said["reward_scores"]) == ({}, {})
    assert f"3 answers of agent loops have {3 * first['unsampled_ids']} ids" in err
    code, _, err = on_listing(*batch, "rolls.jsonl", "--rollouts")
    assert code == 0
    rolls = inf.load_rollouts("rolls.jsonl")
    assert [each.agent_loop for each in rolls] == ["renders"] * 3
    assert rolls[0].extra["prompt"] == asked and rolls[0].messages is None
    assert "agent loop renders" in json.loads(Path("out.meta.json").read_text())
