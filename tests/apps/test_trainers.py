"""Files of the trainers that are read. Those in `trainer_files/` were written by the trainers' own
code, run with made-up samples:

trl_1.10, trl_1.16: `GRPOTrainer.log` of these releases, `Trainer.log` replaced.
slime: `save_debug_rollout_data` and `Sample` at 624b824a.
prime_rl: `FileMonitor.log_episodes` at 559b4477 with `Episode` of verifiers at a60a606e.
prime_rl_0.8: `Trace.to_record` of that verifiers, with the keys that prime-rl 0.7 adds; its writer
is `json.dumps`, by hand.
skyrl: `dump_per_dataset_eval_results` at a956457.

`trainer_runs/` has what is read of each: first of the whole run, then each row.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from fastapi.testclient import TestClient

import inf
from _inf.apps.runs.page import run_page
from _inf.apps.runs.server import ServedRun, create_app
from _inf.errors import ConfigError
from tests.apps import test_show
from tests.support.json_lines import read, write

browser, opened = test_show.browser, test_show.opened
FILES = Path(__file__).parent / "trainer_files"


def scores(run: inf.Run) -> list[Any]:
    return [*run.to_pandas()["score"].astype(object).replace(float("nan"), None)]


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir()))
def test_rows_of_each_trainer_are_read_shown_and_found_by_their_text(name: str) -> None:
    found = inf.load_run(FILES / name)
    notes = [note.partition(": read were its ")[2] or note for note in found.notes]
    table = json.loads(found.to_pandas().to_json(orient="values", double_precision=6))
    facts = {"steps": found.steps, "unit": found.index.unit, "notes": notes, "table": table}
    told = json.dumps([facts, *(row.row() for row in found.rows)], default=repr)
    assert json.loads(told) == read(FILES.with_name("trainer_runs") / f"{name}.jsonl")

    served = ServedRun([Path(found.name)], lambda: found)
    client = TestClient(create_app(served), base_url="http://127.0.0.1")
    last = len(found) - 1
    answer = found.rows[last].completion
    assert answer in run_page(found)
    rows = client.get(f"/rows?reading=0&at=0,{last}").json()
    assert [*rows] == ["0", str(last)] and rows[str(last)]["preview"] == answer
    asked = {"reading": 0, "text": answer.upper()}
    assert last in client.get("/search", params=asked).json()
    assert client.get("/search", params={**asked, "text": "nowhere"}).json() == []


# ── TRL ──────────────────────────────────────────────────────────────────────────────────────────


def test_reward_that_is_named_is_the_score() -> None:
    named = inf.load_run(FILES / "trl_1.10", reward="format_reward")
    assert scores(named)[:4] == [0.5, 0.5, 0, None] and named.notes == []
    assert named.rows[0].reward == 0.5
    (file, _) = sorted((FILES / "trl_1.10/completions").iterdir())
    assert [row.reward for row in inf.load_rollouts(file)][:2] == [1.5, 0.5]
    assert inf.load_rollouts(file, reward="format_reward")[1].reward == 0.5
    assert scores(inf.load_run(FILES / "slime", reward="acc"))[4] == 1
    with pytest.raises(
        ConfigError, match="reward: no row has a number acc; those .* \\['accuracy_reward'"
    ):
        inf.load_run(FILES / "trl_1.10", reward="acc")


def test_trl_advantages_are_compared_within_each_prompt(tmp_path: Path) -> None:
    columns = "step,prompt,completion,a,b,advantage\n"
    for advantages, known in (
        ((-0.7, 0.7, -0.9, 0.9), True),
        ((-0.7, 0.7, 0.9, -0.9), False),
        ((-0.7, 0.7, 0.0, 0.0), False),
    ):
        lines = ("1,A,x,0.0,0.0,{}", "1,A,x,1.0,0.0,{}", "1,B,x,5.0,0.0,{}", "1,B,x,5.0,2.0,{}")
        rows = columns + "\n".join(lines).format(*advantages)
        pandas.read_csv(StringIO(rows)).to_parquet(tmp_path / "completions_00001.parquet")
        assert scores(inf.load_run(tmp_path)) == ([0, 1, 5, 7] if known else [None] * 4)


# ── slime ────────────────────────────────────────────────────────────────────────────────────────


def test_file_or_folder_of_one_step_is_a_run() -> None:
    (evals,) = (FILES / "slime").rglob("eval_1.pt")
    assert inf.load_run(evals).steps == [1]
    assert inf.load_run(FILES / "prime_rl/rollouts/step_10").steps == [10]
    [*_, last] = inf.load_run(FILES / "prime_rl").rows
    assert inf.load_rollouts(next((FILES / "prime_rl").rglob("step_10/train/all/*")))[3] == last


def test_rows_with_ids_are_shown_as_text_and_with_a_tokenizer_token_by_token(
    opened: Any, tokenizer: Any
) -> None:
    seen = opened(run_page(inf.load_run(FILES / "slime")))
    seen.page.wait_for_selector(".card")
    assert seen.texts(".question") == ["user\nQ 1\nassistant\n"]
    seen.page.click(".card >> nth=0")
    assert "call tool end" in seen.text("#detail .messages")
    assert "Token ids" in seen.texts("#detail summary")
    row = inf.load_run(FILES / "slime", tokenizer=tokenizer).rows[0]
    assert row.response_texts == [tokenizer.decode([id_]) for id_ in row.response_ids or ()]


class Runs:
    """Makes a folder when it is loaded."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("made",)


def test_code_in_a_saved_file_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sample = {"prompt": "Q", "response": "A", "reward": 1.0, "status": "completed"}
    torch.save({"rollout_id": 0, "samples": [{**sample, "metadata": Runs()}]}, "0.pt")
    pickle.loads(pickle.dumps(Runs()))
    Path("made").rmdir()
    found = inf.load_run("0.pt")
    assert found.rows[0].reward == 1.0 and "mkdir" in repr(found.rows[0].extra["metadata"])
    assert "Q" in run_page(found) and not Path("made").exists()


def test_slime_files_of_its_training_side_are_refused(tmp_path: Path) -> None:
    sides = {"rollout_id": 0, "rank": 0, "samples": [{"tokens": [1], "log_probs": [0.0]}]}
    torch.save(sides, tmp_path / "0.pt")
    with pytest.raises(ConfigError, match=r"0\.pt: sample 1 has no response: its keys are tokens"):
        inf.load_run(tmp_path)


# ── prime-rl ─────────────────────────────────────────────────────────────────────────────────────


def test_prime_rl_before_its_rewards_had_weights_is_read_too(tmp_path: Path) -> None:
    trace = """{"task": {}, "rewards": {"a": 0.5, "b": 0.25}, "nodes": [{"message":
        {"role": "assistant", "content": "A"}, "sampled": true, "finish_reason": "length"}]}"""
    write(tmp_path / "traces.jsonl", [trace.replace("\n", "")])  # of 0.7
    row = inf.load_run(tmp_path / "traces.jsonl").rows[0]
    assert (row.reward, row.finish_reason, row.completion) == (0.75, "length", "A")
    write(tmp_path / "traces.jsonl", [trace.replace("\n", "").replace("[{", '[{"parent": 0, ')])
    with pytest.raises(ConfigError, match="line 1: it has the keys of prime-rl's rows, but not"):
        inf.load_run(tmp_path / "traces.jsonl")


# ── All ──────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_broken_or_of_another_kind_is_named(tmp_path: Path) -> None:
    for name in ("slime/rollout_data/1.pt", "trl_1.10/completions/completions_00002.parquet"):
        file = tmp_path / name
        folder = shutil.copytree((FILES / name).parent, file.parent)
        file.write_bytes(file.read_bytes()[:900])
        found = inf.load_run(folder)
        assert len(found.steps) == 1 and f"{file}: it is no whole" in str(found.notes)
        with pytest.raises(ConfigError, match="it is no whole"):
            inf.load_rollouts(file)
        first = min(folder.iterdir())
        first.write_bytes(first.read_bytes() + b"\n")
        with pytest.raises(ConfigError, match="it changed since it was read"):
            found.rows[0]

    (tmp_path / "data").mkdir()
    pandas.DataFrame({"question": ["Q"]}).to_parquet(tmp_path / "data" / "a.parquet")
    with pytest.raises(
        ConfigError, match=r"a\.parquet: it has none of .* TRL step, prompt.*question"
    ):
        inf.load_run(tmp_path / "data")
    for wrong in (
        '{"input_prompt": "Q", "score": 1.0, "output_response": 5}',
        '{"input_prompt": "Q", "score": ["x"], "output_response": ""}',
    ):
        write(tmp_path / "wrong.jsonl", [wrong])
        with pytest.raises(ConfigError, match="line 1: it has the keys of SkyRL's rows, but not"):
            inf.load_run(tmp_path / "wrong.jsonl")
    for name, why in (("a.jsonl.gz", "gunzip"), ("b.pkl", "to load a pickle is to run")):
        (tmp_path / name).touch()
        with pytest.raises(ConfigError, match=why):
            inf.load_run(tmp_path / name)


def test_a_folder_of_two_trainers_is_refused(tmp_path: Path) -> None:
    shutil.copy(next((FILES / "skyrl").rglob("unknown.jsonl")), tmp_path / "2.jsonl")
    write(tmp_path / "1.jsonl", [{"input": "Q", "output": "A", "score": 1}])
    with pytest.raises(ConfigError, match=r"1\.jsonl is of verl and .*2\.jsonl of SkyRL"):
        inf.load_run(tmp_path)
