"""Files of rollouts and of traces: what is read, what is refused, and what a crash leaves."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import inf
from _inf.apps.rollouts.traces import Trace, TraceFile
from inf import ConfigError, GenerationRow, as_rollouts, load_rollouts, save_rollouts
from tests.support.json_lines import write

ROW = {
    "row_id": "3.1",
    "prompt_token_ids": [5, 6],
    "response_ids": [7, 8, 9],
    "response_mask": [1, 0, 1],
    "logprobs": [-0.1, 0.0, -1.2345678901234567e-05],
    "completion": "é <b>",
    "reward": 1.0,
    "finish_reason": "stop",
    "weight_version": 2,
    "data_source": "math",
}


FILE = Path("a.jsonl")


def loaded(*lines: Any) -> list[Any]:
    return load_rollouts(write(FILE, [*lines]))


# ── The file ─────────────────────────────────────────────────────────────────────────────────────


def test_row_is_read_back_as_it_was_written_with_its_other_keys():
    [rollout] = loaded(ROW)
    assert rollout.row() == ROW and rollout.extra == {"data_source": "math"}
    assert rollout.logprobs == ROW["logprobs"] and rollout.messages is None
    assert repr(rollout) == "<Rollout 3.1: 'é <b>' (3 tokens, stop, reward 1.0)>"
    save_rollouts([rollout], FILE)
    assert load_rollouts(FILE) == [rollout]


def test_row_without_an_id_has_its_line():
    found = loaded({"completion": "a"}, "", {"completion": "b", "line": 7}, {"error": {}})
    assert [each.row_id for each in found] == ["1", "7", "4"]


def test_line_of_another_form_is_named_with_its_key():
    for line, says in (
        ({"response": {"body": {}}}, "it has none of response_ids, completion, messages, error"),
        ({**ROW, "response_ids": [7, 8.0, 9]}, "response_ids.1: 8.0"),
        ({**ROW, "reward": float("nan")}, "reward: nan is not a finite number"),
        ({**ROW, "response_mask": None}, "response_mask is missing"),
        ({**ROW, "response_mask": [1, 2, 1]}, "response_mask: its values must be 0 or 1"),
        ({**ROW, "logprobs": [-0.1]}, "logprobs: 1 values for 3 response_ids; give one each"),
        (
            {**ROW, "answer_places": [[0, 2], [1, 3]]},
            "answer_places: it must be pairs of a first index and",
        ),
        ('{"completion": "a', "it is not JSON (the file ends inside it)"),
    ):
        text = line if isinstance(line, str) else json.dumps(line)
        FILE.write_text(f"{json.dumps(ROW)}\n{text}")
        with pytest.raises(ConfigError) as caught:
            load_rollouts(FILE)
        assert str(caught.value).startswith(f"a.jsonl, line 2: {says}")


def test_file_without_rows_is_refused():
    Path("empty.jsonl").write_text("\n")
    for said in (
        "none.jsonl cannot be read: ",
        "empty.jsonl: it has no rows",
        ". cannot be read: ",
    ):
        with pytest.raises(ConfigError, match=said):
            load_rollouts(said.split(" ")[0].rstrip(":"))


def test_value_that_json_cannot_keep_is_named_and_nothing_is_written():
    rows = [ROW, {**ROW, "note": float("nan")}]
    with pytest.raises(ConfigError, match=r"^rows\[1\]: JSON cannot keep it: note: "):
        save_rollouts(rows, FILE)
    assert not FILE.exists()


def test_what_has_no_rows_is_refused():
    for rows in (None, "rows", {"completion": "a"}):
        with pytest.raises(ConfigError, match="^rows: .* is not a GenerationOutput"):
            as_rollouts(rows)
    with pytest.raises(ConfigError, match=r"^rows\[0\]: a row is a JSON object, not 5"):
        as_rollouts([5])


# ── Sources without an engine ────────────────────────────────────────────────────────────────────


def test_trace_of_a_session_is_a_rollout_with_its_fork():
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    trace = Trace("t2", [1, 2], [3, 4, 5], [1, 0, 1], [-0.5, 0.0, -0.25], said)
    ends = {"finish_reasons": ["tool_calls", "stop"], "weight_versions": [(4, 0), (5, 2)]}
    trace = dataclasses.replace(trace, reward=0.5, forked_from=("t1", 2), **ends)
    save_rollouts([trace], FILE)
    [rollout] = load_rollouts(FILE)
    assert (rollout.finish_reason, rollout.weight_version, rollout.num_turns) == ("stop", 5, 2)
    assert (rollout.messages, rollout.completion) == (said, "Yes")
    assert as_rollouts([trace]) == [rollout]
    for known in ([], [-0.5, 0.0]):  # a server gave none, or to some turns
        unknown = [*known, *[float("nan")] * (3 - len(known))]
        save_rollouts([dataclasses.replace(trace, logprobs=unknown)], FILE)
        [rollout] = load_rollouts(FILE)
        assert rollout.logprobs is None and rollout.response_ids == [3, 4, 5]


def test_reward_that_no_float_holds_costs_no_row():
    ids, ones = torch.tensor([[1, 2]] * 2), torch.ones(2, 2, dtype=torch.int64)
    tensors = {"input_ids": ids, "attention_mask": ones, "response_mask": ones[:, 1:]}
    columns = {"reward_scores": [{"reward": 10**400}, {"reward": 2}]}
    batch = SimpleNamespace(batch={**tensors, "responses": ids[:, 1:]}, non_tensor_batch=columns)
    assert [row.reward for row in as_rollouts(batch)] == [None, 2.0]


# ─── The file of `inf serve --traces` ───

ANSWERS = """
import pathlib, sys, types
from _inf.apps.rollouts.traces import TraceFile
from _inf.apps.serve.session_settings import SessionSettings
from _inf.apps.serve.open_sessions import Sessions
from _inf.apps.serve.sessions import Start
from _inf.types import RequestOutput

sessions = Sessions(file=TraceFile(sys.argv[1]))
session = sessions.of_request("one", SessionSettings(task="sums", rollout="r"))
messages, ids = [], [1]
for turn in range(10**6):
    messages.append({"role": "user", "content": str(turn)})
    output = RequestOutput(token_ids=[2] * 500, logprobs=[-0.5] * 500)
    said = {"role": "assistant", "content": "Yes"}
    choice = types.SimpleNamespace(output=output, finish_reason="stop", message=said, ended=True)
    start = session.chat(list(messages), "", types.SimpleNamespace(after=lambda *a, **k: [3]))
    session.add(start, start.ids or ids, choice)
    messages.append(said)
    print(turn, flush=True)
"""


def test_killed_server_loses_no_recorded_answer():
    with subprocess.Popen(
        [sys.executable, "-c", ANSWERS, FILE], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(40):
            process.stdout.readline()
        process.kill()
        told = 40 + len(process.stdout.read().splitlines())
    [trace] = inf.load_traces(FILE)
    turns = len(trace.finish_reasons)
    assert turns >= told and len(trace.messages) == 2 * turns
    assert trace.token_ids == ([2] * 500 + [3]) * (turns - 1) + [2] * 500
    assert len(trace.logprobs) == len(trace.response_mask) == len(trace.token_ids)
    assert (trace.task, trace.rollout) == ("sums", "r")
    assert FILE.stat().st_size < turns * 12_000  # a line has its answer, not all before it


def test_traces_read_back_as_they_were():
    begun = Trace("a", [1, 2], [3], [1], [math.nan], [{"role": "user"}], ["length"], [(0, 0)])
    other = dataclasses.replace(begun, id="b", forked_from=("a", 1), fork_reason="retried")
    longer = dataclasses.replace(begun, token_ids=[3, 4], response_mask=[1, 0], logprobs=[0.0, 0.0])
    rewarded = dataclasses.replace(longer, reward=0.5, limit="max_turns")
    written = TraceFile(FILE)
    for before, after in ((None, begun), (None, other), (begun, longer), (longer, rewarded)):
        written.write(before, after)
    written.close()
    with open(FILE, "a") as torn:
        torn.write('{"id": "a", "token_')
    first, second = inf.load_traces(FILE)
    assert math.isnan(first.logprobs[0]) and math.isnan(second.logprobs[0])
    assert dataclasses.replace(first, logprobs=rewarded.logprobs) == rewarded
    assert dataclasses.replace(second, logprobs=other.logprobs) == other
    assert [row.row_id for row in inf.load_rollouts(FILE)] == ["a", "b"]
    again = TraceFile(FILE)  # continues after the last whole line
    with pytest.raises(ConfigError, match="another server is writing it"):
        TraceFile(FILE)
    again.write(rewarded, dataclasses.replace(rewarded, reward=1.0))
    again.close()
    assert [trace.reward for trace in inf.load_traces(FILE)] == [1.0, None]


def test_line_that_is_no_trace_is_named():
    for line, says in (
        ('{"row_id": "1", "completion": "x"}', "line 1: .* is not a trace"),
        ('{"id": "a", "prompt_token_ids": ["x"]}', "line 1: prompt_token_ids.0"),
        ("[", "line 1: it is not JSON"),
    ):
        with pytest.raises(ConfigError, match=says):
            inf.load_traces(write(FILE, [line]))
    with pytest.raises(ConfigError, match="traces: .*it is a folder"):
        TraceFile(".")


def test_row_that_failed_keeps_its_error():
    row = GenerationRow("", [], [], finish_reason="abort", error="PromptError: too long")
    [rollout] = as_rollouts([row])
    assert rollout.extra["error"] == "PromptError: too long"
