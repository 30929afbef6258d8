"""Files of the trainers that are read. Those in `trainer_files/` were written by the trainers' own
code, run with made-up samples:

trl_1.10, trl_1.16: `GRPOTrainer.log` of these releases, `Trainer.log` replaced.
slime: `save_debug_rollout_data` and `Sample` at 624b824a.
prime_rl: `FileMonitor.log_episodes` at 559b4477 with `Episode` of verifiers at a60a606e.
prime_rl_0.8: `Trace.to_record` of that verifiers, with the keys that prime-rl 0.7 adds; its writer
is `json.dumps`, by hand.
skyrl: `dump_per_dataset_eval_results` at a956457.
"""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient

import inf
from _inf.apps.runs.page import run_page
from _inf.apps.runs.server import ServedRun, create_app
from _inf.errors import ConfigError
from tests.apps import test_show
from tests.support.json_lines import write
from tests.support.tiny import tiny_model

browser, opened = test_show.browser, test_show.opened
FILES = Path(__file__).parent / "trainer_files"


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """Copies a trainer's files and reads them."""

    def read(name: str, **how: Any) -> inf.Run:
        shutil.copytree(FILES / name, tmp_path / name)
        return inf.load_run(tmp_path / name, **how)

    return read


def scores(run: inf.Run) -> list[Any]:
    table = run.to_pandas()["score"]
    return [
        None if missing else round(score, 6)
        for score, missing in zip(table, table.isna(), strict=True)
    ]


def tail(notes: list[str]) -> list[str]:
    return [note.partition(": read were its ")[2] or note for note in notes]


# ── TRL ──────────────────────────────────────────────────────────────────────────────────────────


def test_trl_score_is_the_sum_of_its_rewards_if_that_gives_the_advantages(run: Any) -> None:
    found = run("trl_1.10")
    assert found.steps == [1, 2]
    assert scores(found)[:8] == [1.5, 0.5, 0, 0, 0.1, 0.1, 0.3, 0.2]
    assert found.notes == [
        "The score is the sum of accuracy_reward and format_reward, which gives the advantages; "
        "--reward NAME takes one of them."
    ]
    row = found.rows[3]
    assert row.completion == "answer 1 3" and row.extra["prompt"] == "user\nQ A\nassistant\n"
    assert row.reward_scores == {"accuracy_reward": 0, "format_reward": None}  # its NaN
    assert (row.extra["solution"], row.extra["step"]) == ("7", 1)

    named = inf.load_run(FILES / "trl_1.10", reward="format_reward")
    assert scores(named)[:5] == [0.5, 0.5, 0, None, 0.1] and named.notes == []
    assert named.rows[0].reward == 0.5
    (file, _) = sorted((FILES / "trl_1.10/completions").iterdir())
    assert [row.reward for row in inf.load_rollouts(file)][:2] == [1.5, 0.5]
    assert inf.load_rollouts(file, reward="format_reward")[1].reward == 0.5
    with pytest.raises(
        ConfigError, match="reward: no row has a number acc; those .* \\['accuracy_reward'"
    ):
        inf.load_run(FILES / "trl_1.10", reward="acc")


def test_trl_has_no_score_where_a_logged_column_may_be_a_reward(run: Any) -> None:
    found = run("trl_1.16")
    assert scores(found) == [None] * 16
    assert found.notes[0].startswith(
        "The score is none, as the sum of format_reward and length_logged does not give the "
        "advantages; --reward NAME"
    )
    plain, with_tool = found.rows[0], found.rows[1]
    assert plain.messages == [
        *plain.extra["prompt"],
        {"role": "assistant", "content": "answer 1 0"},
    ]
    assert [message["role"] for message in with_tool.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert with_tool.completion == "answer 1 1"
    assert len(set(found.to_pandas()["prompt"])) == 2


def test_trl_advantages_are_compared_within_each_prompt(tmp_path: Path) -> None:
    import pandas

    columns = {"step": [1] * 4, "prompt": ["A", "A", "B", "B"], "completion": ["x"] * 4}
    rewards = {"a": [0.0, 1.0, 5.0, 5.0], "b": [0.0, 0.0, 0.0, 2.0]}
    for advantages, known in (
        ([-0.7, 0.7, -0.9, 0.9], True),
        ([-0.7, 0.7, 0.9, -0.9], False),
        ([-0.7, 0.7, 0.0, 0.0], False),
    ):
        table = pandas.DataFrame({**columns, **rewards, "advantage": advantages})
        table.to_parquet(tmp_path / "completions_00001.parquet")
        assert scores(inf.load_run(tmp_path)) == ([0, 1, 5, 7] if known else [None] * 4)


# ── slime ────────────────────────────────────────────────────────────────────────────────────────


def test_slime_samples_have_ids_mask_log_probs_and_how_they_ended(run: Any) -> None:
    found = run("slime")
    assert found.steps == [0, 1] and len(found) == 8
    assert tail(found.notes) == [
        "2 files rollout_data/*.pt, and not *eval_* (1); to see those, name the files.",
        "The score of 1 rows is none, as rewards are acc and pred; --reward NAME takes one of "
        "them.",
    ]
    assert scores(found) == [0, 0, 0, 0, None, 0, 0.25, 0]  # 0.25 was a numpy number
    row = found.rows[0]
    assert (row.prompt_token_ids, row.response_ids) == ([1, 2, 3], [4, 5, 6, 8, 9, 10])
    assert row.response_mask == [1, 1, 1, 0, 0, 1] and row.logprobs[3:] == [0.0, 0.0, -0.5]
    assert (row.completion, row.finish_reason, row.uid) == ("call tool end", "length", 0)
    assert (row.extra["prompt"], row.extra["ground_truth"]) == ("user\nQ 0\nassistant\n", "7")
    assert [each.finish_reason for each in found.rows[1:3]] == ["stop", "abort"]
    assert found.by_step()["cut"].tolist() == [0.5, 0.5] and found.index.unit == "tokens"
    assert found.rows[5].extra["rollout_routed_experts"] == "<a tensor of (3, 2), not loaded>"
    assert "not loaded" in repr(found.rows[6].extra["metadata"]["arr"])
    (evals,) = (FILES / "slime").rglob("eval_1.pt")
    assert inf.load_run(evals).steps == [1]
    assert scores(inf.load_run(FILES / "slime", reward="acc"))[4] == 1


def test_rows_with_ids_are_shown_as_text_and_with_a_tokenizer_token_by_token(opened: Any) -> None:
    seen = opened(run_page(inf.load_run(FILES / "slime")))
    seen.page.wait_for_selector(".card")
    assert seen.texts(".question") == ["user\nQ 1\nassistant\n"]
    seen.page.click(".card >> nth=0")
    assert "call tool end" in seen.text("#detail .messages")
    assert "Token ids" in seen.texts("#detail summary")

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    row = inf.load_run(FILES / "slime", tokenizer=tokenizer).rows[0]
    assert row.response_texts is not None and len(row.response_texts) == 6
    assert row.response_texts[0] == tokenizer.decode([4])


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


def test_prime_rl_has_a_row_for_each_path_of_each_trace(run: Any) -> None:
    found = run("prime_rl")
    assert found.steps == [1, 10]  # of the folders
    assert tail(found.notes) == [
        "2 files rollouts/step_*/train/effective/traces.jsonl, and not "
        "rollouts/step_*/train/all/traces.jsonl (2), "
        "rollouts/step_*/eval/effective/traces.jsonl (1); to see those, name the files.",
        "The score of 7 rows is the weighted sum of correct and format; --reward NAME takes one of "
        "them.",
    ]
    assert scores(found) == [1.1, 0.1, 0.1, None, 1.1, 1.1, 1.1, 1.1]
    row = found.rows[1]
    assert (row.prompt_token_ids, row.response_ids) == ([1, 2, 3, 4], [5, 6, 7, 8, 9])
    assert row.response_mask == [1, 1, 0, 0, 1] and row.logprobs == [-0.1, -0.2, 0.0, 0.0, -0.3]
    assert [each["role"] for each in row.extra["prompt"]] == ["system", "user"]
    assert (row.completion, row.finish_reason, row.num_turns) == ("answer 1 1", "length", 2)
    assert (row.uid, row.extra["ground_truth"], row.extra["data_source"]) == ("g0", "7", "gsm8k")
    assert inf.load_run(FILES / "prime_rl/rollouts/step_10").steps == [10]
    failed = found.rows[3]
    assert failed.completion is None and failed.extra["error"]["message"] == "no sandbox"
    whole, other = found.rows[6:]
    assert whole.rollout == other.rollout is not None and other.completion == "other branch"
    assert (whole.row_id, other.row_id) == ("3.0", "3.1")
    assert inf.load_rollouts(next((FILES / "prime_rl").rglob("step_10/train/all/*")))[3] == other


def test_prime_rl_before_episodes_is_read_too(run: Any, tmp_path: Path) -> None:
    found = run("prime_rl_0.8")
    assert found.steps == [3] and scores(found) == [1.1] * 4
    assert found.rows[0].uid == "g" and found.rows[0].extra["data_source"] == "gsm8k"
    node = {"message": {"role": "assistant", "content": "A"}, "sampled": True}
    trace = {
        "task": {},
        "rewards": {"a": 0.5, "b": 0.25},
        "nodes": [{**node, "finish_reason": "length"}],
    }
    write(tmp_path / "traces.jsonl", [trace])  # of 0.7
    row = inf.load_run(tmp_path / "traces.jsonl").rows[0]
    assert (row.reward, row.finish_reason, row.completion) == (0.75, "length", "A")
    write(tmp_path / "traces.jsonl", [{**trace, "nodes": [{**node, "parent": 0}]}])
    with pytest.raises(ConfigError, match="line 1: it has the keys of prime-rl's rows, but not"):
        inf.load_run(tmp_path / "traces.jsonl")


# ── SkyRL ────────────────────────────────────────────────────────────────────────────────────────


def test_skyrl_evaluations_have_the_step_of_their_folder(run: Any) -> None:
    found = run("skyrl")
    assert found.steps == [5, 10] and len(found) == 6  # not 8, of gsm8k
    assert scores(found)[:3] == [0.5, 1, 0]  # sums over tokens
    assert tail(found.notes) == [
        "4 files dumped_evals/global_step_*_evals/*.jsonl, and not aggregated_results.jsonl (2); "
        "to see those, name the files."
    ]
    row = found.rows[1]
    assert (row.completion, row.finish_reason) == ("w4 w4 w4", "stop")
    assert (row.extra["prompt"], row.extra["ground_truth"]) == ("w1 w2", "7")
    assert row.extra["data_source"] == "openai/gsm8k"


# ── All ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(path.name for path in FILES.iterdir()))
def test_pages_of_all_trainers_show_their_rows_and_find_their_text(name: str, run: Any) -> None:
    found = run(name)
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


def test_what_is_broken_or_of_another_kind_is_named(tmp_path: Path) -> None:
    for name, cut in (
        ("slime/rollout_data/1.pt", 900),
        ("trl_1.10/completions/completions_00002.parquet", 900),
    ):
        folder = tmp_path / name.partition("/")[0]
        shutil.copytree((FILES / name).parent, folder)
        file = folder / Path(name).name
        file.write_bytes(file.read_bytes()[:cut])
        found = inf.load_run(folder)
        assert len(found.steps) == 1 and any(
            f"{file}: it is no whole" in note for note in found.notes
        )
        with pytest.raises(ConfigError, match="it is no whole"):
            inf.load_rollouts(file)
        first = min(folder.iterdir())
        first.write_bytes(first.read_bytes() + b"\n")
        with pytest.raises(ConfigError, match="it changed since it was read"):
            found.rows[0]

    import pandas

    (tmp_path / "data").mkdir()
    pandas.DataFrame({"question": ["Q"]}).to_parquet(tmp_path / "data" / "a.parquet")
    with pytest.raises(
        ConfigError, match=r"a\.parquet: it has none of .* TRL step, prompt.*question"
    ):
        inf.load_run(tmp_path / "data")
    skyrl = {"input_prompt": "Q", "score": 1.0}
    for wrong in (
        {**skyrl, "output_response": 5},
        {**skyrl, "output_response": "", "score": ["x"]},
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
