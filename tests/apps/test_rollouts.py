"""The JSON form of a rollout: what is read, what is refused and how, and the texts of tokens."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from _inf.apps.rollouts.traces import Trace
from inf import ConfigError, as_rollouts, load_rollouts, save_rollouts

ROW: dict[str, Any] = {
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


def written(path: Path, *lines: Any) -> Path:
    texts = [line if isinstance(line, str) else f"{json.dumps(line)}\n" for line in lines]
    path.write_text("".join(texts))
    return path


# ── The file ─────────────────────────────────────────────────────────────────────────────────────


def test_row_is_read_back_as_it_was_written_with_its_other_keys(tmp_path: Path) -> None:
    [rollout] = load_rollouts(written(tmp_path / "a.jsonl", ROW))
    assert rollout.row() == ROW and rollout.extra == {"data_source": "math"}
    assert rollout.logprobs == ROW["logprobs"] and rollout.messages is None
    assert repr(rollout) == "<Rollout 3.1: 'é <b>' (3 tokens, stop, reward 1.0)>"
    save_rollouts([rollout], tmp_path / "b.jsonl")
    assert load_rollouts(tmp_path / "b.jsonl") == [rollout]


def test_row_without_an_id_has_its_line(tmp_path: Path) -> None:
    rows = [{"completion": "a"}, {"completion": "b", "line": 7}, {"error": {"message": "no"}}]
    path = written(tmp_path / "a.jsonl", rows[0], "\n", *rows[1:])
    assert [each.row_id for each in load_rollouts(path)] == ["1", "7", "4"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[1]", "a row is a JSON object, not [1]"),
        ({"response": {"body": {}}}, "it has none of response_ids, completion, messages, error"),
        ({**ROW, "response_ids": [7, 8.0, 9]}, "response_ids.1: 8.0"),
        ({**ROW, "reward": float("nan")}, "reward: nan is not a finite number"),
        ({**ROW, "logprobs": [-0.1]}, "logprobs: 1 values for 3 response_ids; give one each"),
        ({**ROW, "response_mask": None}, "response_mask is missing"),
        ({**ROW, "unsampled_at": [0, 3]}, "unsampled_at: 3 is no place among 3 response_ids"),
        ({**ROW, "answer_places": [[0, 2], [1, 3]]}, "answer_places: pairs of a first place and"),
        ({**ROW, "response_mask": [1, 2, 1]}, "response_mask: its values are 0 and 1"),
        ('{"completion": "a', "it is not JSON (the file ends inside it)"),
    ],
)
def test_line_of_another_form_is_named_with_its_key(line: Any, says: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", ROW, line)
    with pytest.raises(ConfigError) as caught:
        load_rollouts(path)
    assert str(caught.value).startswith(f"{path}, line 2: {says}")


@pytest.mark.parametrize("name", ["none.jsonl", "empty.jsonl", "."])
def test_file_without_rows_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ConfigError, match=rf"{name}(: it has no rows| cannot be read: )"):
        load_rollouts(tmp_path / name)


def test_value_that_json_cannot_keep_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    rows = [ROW, {**ROW, "note": float("nan")}]
    with pytest.raises(ConfigError, match=r"^rows\[1\]: JSON cannot keep it: note: "):
        save_rollouts(rows, tmp_path / "a.jsonl")
    assert not list(tmp_path.iterdir())


def test_what_has_no_rows_is_refused() -> None:
    for rows in (None, "rows", {"completion": "a"}):
        with pytest.raises(ConfigError, match="^rows: .* is no GenerationOutput"):
            as_rollouts(rows)
    with pytest.raises(ConfigError, match=r"^rows\[0\]: a row is a JSON object, not 5"):
        as_rollouts([5])


# ── Sources without an engine ────────────────────────────────────────────────────────────────────


def test_trace_of_a_session_is_a_rollout_with_its_fork(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
    trace = Trace(
        id="t2",
        prompt_token_ids=[1, 2],
        token_ids=[3, 4, 5],
        response_mask=[1, 0, 1],
        logprobs=[-0.5, 0.0, -0.25],
        messages=said,
        finish_reasons=["tool_calls", "stop"],
        weight_versions=[(4, 0), (5, 2)],
        reward=0.5,
        forked_from=("t1", 2),
    )
    save_rollouts([trace], tmp_path / "a.jsonl")
    [rollout] = load_rollouts(tmp_path / "a.jsonl")
    assert (rollout.finish_reason, rollout.weight_version, rollout.num_turns) == ("stop", 5, 2)
    assert (rollout.messages, rollout.completion) == (said, "Yes")
    assert as_rollouts([trace]) == [rollout]
    for known in ([], [-0.5, 0.0]):  # a server gave none, or to some turns
        unknown = [*known, *[float("nan")] * (3 - len(known))]
        save_rollouts([dataclasses.replace(trace, logprobs=unknown)], tmp_path / "a.jsonl")
        [rollout] = load_rollouts(tmp_path / "a.jsonl")
        assert rollout.logprobs is None and rollout.response_ids == [3, 4, 5]


def test_odd_value_in_a_column_of_a_batch_costs_no_row() -> None:
    ids, ones = torch.tensor([[1, 2]] * 2), torch.ones(2, 2, dtype=torch.int64)
    tensors = {"input_ids": ids, "attention_mask": ones}
    tensors |= {"responses": ids[:, 1:], "response_mask": ones[:, 1:]}
    scores = [{"reward": 10**400}, {"reward": 2}]
    columns = {"odd": [object(), 3], "reward_scores": scores}
    first, second = as_rollouts(SimpleNamespace(batch=tensors, non_tensor_batch=columns))
    assert first.reward is None and second.reward == 2.0
    assert "odd" not in first.extra and second.extra["odd"] == 3
