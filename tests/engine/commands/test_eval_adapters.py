"""`inf eval --adapter`: its rows, what a resumed run checks, and the comparison with the base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import inf
from _inf.apps.cli import main
from inf import InferenceEngine
from tests.support.json_lines import read, write
from tests.support.tiny import tiny_model
from tests.support.trained import adapter
from tests.support.verl_rows import verl_rows

REWARD = """
def even(solution_str, **rest):
    return float(len(solution_str) % 2 == 0)
"""
ROLLOUT = {"name": "hf", "dtype": "float32", "prompt_length": 128, "response_length": 32}
SETTINGS = [f"--set=rollout.{name}={value}" for name, value in ROLLOUT.items()]


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("reward.py").write_text(REWARD)
    write(Path("rows.jsonl"), verl_rows(4))
    adapter(tiny_model(), Path("mine"))


def evaluated(out: str, *more: str) -> int:
    model = f"--set=model_path={tiny_model()}"
    own = ["--reward", "reward.py:even", "--reward-workers", "0", "--out", out, *more]
    return main(["eval", "rows.jsonl", model, *SETTINGS, *own])


def test_adapter_of_a_run_answers_its_rows_and_is_compared_with_the_base(capfd):
    assert evaluated("base") == 0
    assert evaluated("tuned", "--adapter", "mine=mine") == 0
    tuned, base = read(Path("tuned.jsonl")), read(Path("base.jsonl"))
    asked: Any = [row["prompt"] for row in base]
    with InferenceEngine(model_path=str(tiny_model()), rollout=ROLLOUT) as engine:
        engine.load_adapter("mine", "mine")
        ours = engine.generate(asked, temperature=0, adapter="mine")
    assert [row["completion"] for row in tuned] == ours.completions
    assert [row["completion"] for row in base] != ours.completions
    assert {row["adapter"] for row in tuned} == {"mine"} and "adapter" not in base[0]
    assert json.loads(Path("tuned.summary.json").read_text())["parameters"]["adapter"] == "mine"
    [first, *_] = inf.load_rollouts("tuned.jsonl")
    assert first.adapter == "mine"
    capfd.readouterr()
    assert main(["eval", "compare", "base.jsonl", "tuned.jsonl", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)
    # Other weights of the adapter are another run.
    adapter(tiny_model(), Path("mine"), seed=6)
    assert evaluated("tuned", "--adapter", "mine=mine") == 2
    assert "adapter" in capfd.readouterr().err


def test_option_without_a_name_or_a_folder_is_refused(capfd):
    for wrong, words in (("mine", "is not NAME=PATH"), ("a=nowhere", "is not a PEFT folder")):
        assert evaluated("wrong", "--adapter", wrong) == 2
        assert words in capfd.readouterr().err
