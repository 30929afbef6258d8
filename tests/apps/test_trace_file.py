"""The file of `inf serve --traces`: what it holds after a crash, and how it reads back."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import inf
from _inf.apps.rollouts.traces import Trace, TraceFile
from inf import ConfigError

ANSWERS = """
import pathlib, sys, types
from _inf.apps.rollouts.traces import TraceFile
from _inf.apps.serve.session_settings import SessionSettings
from _inf.apps.serve.sessions import Sessions, Start
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


def test_killed_server_loses_no_recorded_answer(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    with subprocess.Popen(
        [sys.executable, "-c", ANSWERS, str(file)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(40):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        told = 40 + len(process.stdout.read().splitlines())
    [trace] = inf.load_traces(file)
    turns = len(trace.finish_reasons)
    assert turns >= told and len(trace.messages) == 2 * turns
    assert trace.token_ids == ([2] * 500 + [3]) * (turns - 1) + [2] * 500
    assert len(trace.logprobs) == len(trace.response_mask) == len(trace.token_ids)
    assert (trace.task, trace.rollout) == ("sums", "r")
    assert file.stat().st_size < turns * 12_000  # a line has its answer, not all before it


def test_traces_read_back_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "traces.jsonl"
    begun = Trace("a", [1, 2], [3], [1], [math.nan], [{"role": "user"}], ["length"], [(0, 0)])
    other = dataclasses.replace(begun, id="b", forked_from=("a", 1), fork_reason="retried")
    longer = dataclasses.replace(begun, token_ids=[3, 4], response_mask=[1, 0], logprobs=[0.0, 0.0])
    rewarded = dataclasses.replace(longer, reward=0.5, limit="max_turns")
    written = TraceFile(file)
    for before, after in ((None, begun), (None, other), (begun, longer), (longer, rewarded)):
        written.write(before, after)
    written.close()
    with open(file, "a") as torn:
        torn.write('{"id": "a", "token_')
    first, second = inf.load_traces(file)
    assert math.isnan(first.logprobs[0]) and math.isnan(second.logprobs[0])
    assert dataclasses.replace(first, logprobs=rewarded.logprobs) == rewarded
    assert dataclasses.replace(second, logprobs=other.logprobs) == other
    assert [row.row_id for row in inf.load_rollouts(file)] == ["a", "b"]
    again = TraceFile(file)  # continues after the last whole line
    again.write(rewarded, dataclasses.replace(rewarded, reward=1.0))
    again.close()
    assert [trace.reward for trace in inf.load_traces(file)] == [1.0, None]


def test_file_that_another_server_writes_is_refused(tmp_path: Path) -> None:
    first = TraceFile(tmp_path / "traces.jsonl")
    with pytest.raises(ConfigError, match="another server is writing it"):
        TraceFile(tmp_path / "traces.jsonl")
    first.close()
    with pytest.raises(ConfigError, match="traces: .*it is a folder"):
        TraceFile(tmp_path)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"row_id": "1", "completion": "x"}', "line 1: .* is no trace"),
        ('{"id": "a", "prompt_token_ids": ["x"]}', "line 1: prompt_token_ids.0"),
        ("[", "line 1: it is not JSON"),
    ],
)
def test_line_that_is_no_trace_is_named(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "x.jsonl").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=says):
        inf.load_traces(tmp_path / "x.jsonl")
