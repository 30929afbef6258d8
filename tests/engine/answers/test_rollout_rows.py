"""Rollouts of the real engine: written, read, and the same `DataProto` again."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import inf
from _inf.apps.cli import main
from inf import ConfigError, load_rollouts, rollouts_to_data_proto
from tests.support.json_lines import write

SAMPLED = {"temperature": 1.0, "seed": 3, "max_tokens": 20}
SAMPLED["stop_token_ids"] = list(range(99))  # so that rows end at several lengths
PROMPTS = ["Hi", [{"role": "user", "content": "What is it, and why?"}]]


def assert_same(batch: Any, again: Any) -> None:
    assert set(again.batch.keys()) == set(batch.batch.keys())
    for name, tensor in batch.batch.items():
        assert again.batch[name].dtype == tensor.dtype, name
        assert torch.equal(again.batch[name], tensor), name
    assert set(again.non_tensor_batch) == set(batch.non_tensor_batch)
    for name, column in batch.non_tensor_batch.items():
        other = again.non_tensor_batch[name]
        assert (other.dtype, other.shape) == (column.dtype, column.shape), name
        assert repr(other.tolist()) == repr(column.tolist()), name


def again(rows: Any, path: Path, tokenizer: Any = None) -> Any:
    inf.save_rollouts(rows, path, tokenizer=tokenizer)
    return rollouts_to_data_proto(load_rollouts(path))


@pytest.mark.verl
def test_batch_is_read_back_with_its_own_tensors_and_columns(tiny, tmp_path):
    batch = tiny.rollout_batch(PROMPTS, n=3, **SAMPLED)
    assert len(set(batch.batch["response_mask"].sum(1).tolist())) > 2
    assert_same(batch, again(batch, tmp_path / "a.jsonl", tiny.tokenizer))
    part = batch[2:5]
    part.pop(["rollout_log_probs"])
    assert_same(part, again(part, tmp_path / "b.jsonl"))
    batch.batch["rollout_log_probs"][1, 0] = float("nan")
    with pytest.raises(ConfigError, match=r"^rows\[1\]: logprobs.0: nan"):
        inf.as_rollouts(batch)
    with pytest.raises(
        ConfigError, match="^rows: the batch has no column input_ids; it needs .*response_mask"
    ):
        inf.as_rollouts(batch.pop(["prompts", "responses"]))
    ids = [each.row_id for each in load_rollouts(tmp_path / "a.jsonl")]
    assert ids == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]


@pytest.mark.verl
def test_trainers_own_columns_are_keys_of_the_row_as_far_as_json_can_hold_them(tiny, tmp_path):
    from verl import DataProto

    extra = {
        "data_source": ["math", "code"],
        "place": np.arange(2),
        "raw_prompt": np.array([[{"role": "user", "content": t}] for t in "ab"]),
        "reward_model": [{"ground_truth": None}, {"ground_truth": np.float32(1.5)}],
        "image": [b"a", b"b"],
        "loss": [float("nan"), 0.5],
    }
    batch = tiny.rollout_batch(PROMPTS, uid=np.array([3, 4]), extra=extra, **SAMPLED)
    scores = torch.zeros(2, 128)
    scores[0, 4], scores[1, 2] = 0.25, 1.0
    batch.batch["token_level_scores"] = scores
    batch.save_to_disk(tmp_path / "batch.pkl")
    made = again(DataProto.load_from_disk(tmp_path / "batch.pkl"), tmp_path / "a.jsonl")
    first, second = load_rollouts(tmp_path / "a.jsonl")
    kept = {"data_source": "math", "place": 0, "reward_model": {"ground_truth": None}}
    assert first.extra == {**kept, "raw_prompt": [{"role": "user", "content": "a"}]}
    assert second.extra["loss"] == 0.5 and second.extra["reward_model"] == {"ground_truth": 1.5}
    columns = made.non_tensor_batch
    assert columns["reward_scores"].tolist() == [{"reward": 0.25}, {"reward": 1.0}]
    assert columns["uid"].tolist() == [first.uid, second.uid] == [3, 4]
    assert "data_source" not in columns


@pytest.mark.verl
def test_rows_that_do_not_make_one_batch_are_refused(tiny):
    first, second = inf.as_rollouts(tiny.generate(["a", "bc"], max_tokens=3), tiny.tokenizer)

    def refused(says: str, *rows: Any, **changes: Any) -> None:
        with pytest.raises(ConfigError, match=says):
            rollouts_to_data_proto([*rows, dataclasses.replace(second, **changes)])

    refused("^rollout 1.0: it has no token ids", first, response_ids=None)
    refused("^rollout 1.0: logprobs is missing, and other rows have it", first, logprobs=None)
    refused("needs one pad_token_id, and they have .'2', '3'.", first, pad_token_id=2)


def test_batch_writes_rollouts_if_asked_to_and_does_not_mix_them_with_its_own_rows(
    tiny, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(tiny))
    monkeypatch.chdir(tmp_path)
    body = {"messages": PROMPTS[1], "temperature": 0, "max_tokens": 5}
    lines = [
        {"prompt": "Name a color.", "id": 7},
        {"custom_id": "q", "body": body},
        {"custom_id": "r", "body": {**body, "n": 2}},
    ]
    write(Path("in.jsonl"), lines)
    command = ["batch", "in.jsonl", "out.jsonl", "--max-tokens", "6"]
    assert main([*command, "--rollouts"]) == 1
    read = load_rollouts("out.jsonl")
    assert [each.row_id for each in read] == ["1", "q", "3"]
    assert (read[0].extra["id"], read[1].extra["custom_id"]) == (7, "q")
    assert "body.n: with --rollouts a line has one answer" in str(read.pop().extra["error"])
    for each, most in zip(read, (6, 5), strict=True):
        [asked, said] = each.messages
        assert (asked["role"], said) == ("user", {"role": "assistant", "content": each.completion})
        assert 0 < len(each.response_ids) <= most
        assert "".join(each.prompt_texts) == tiny.tokenizer.decode(each.prompt_token_ids)
    assert main(command) == 2
    assert "started with rollouts=True, and this run has rollouts=False" in capfd.readouterr().err
