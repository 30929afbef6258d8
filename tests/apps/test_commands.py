"""The command line is a prompt or begins with a command. No engine starts."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import inf
from _inf.apps.cli import main
from _inf.apps.cli.options import Options
from _inf.config import RolloutConfig, load_config
from inf import GenerationOutput


@pytest.fixture
def asked(monkeypatch):
    """The prompts that an engine gets."""
    asked = []

    class Recorder:
        def generate(self, prompt: str, **params: Any) -> GenerationOutput:
            asked.append(prompt)
            return GenerationOutput()

    engine = contextlib.nullcontext(Recorder())
    monkeypatch.setattr(inf, "InferenceEngine", lambda *args, **kwargs: engine)
    return asked


def test_prompt_that_is_no_command_is_asked(command, asked):
    """Behind `ask` or `--`, or where it resembles none."""
    for words in ("ask chat", "--n 1 -- chat", "--stop chat Hello", "-- --n", "-- chaat", "Chatty"):
        assert command(*words.split())[0] == 0
        assert asked.pop() == words.split()[-1]


def test_command_or_argument_of_another_form_is_named_and_nothing_is_asked(command, asked):
    for words, said in (
        ("", "Usage: inf"),
        ("chaat", "did you mean inf chat ...?"),
        ("bach in.jsonl out.jsonl", "did you mean inf batch ...?"),
        ("--temperature 0 check", "To ask the model 'check', write: inf ask check"),
        ("ask Hello --logit-bias {", "'--logit-bias': '{' is not JSON"),
        ("ask Hello --logit-bias [1]", "'[1]' is not a JSON object"),
        ("eval gsm9k", "gsm9k"),
        ("--max_token 5 Hello", "--max-tokens"),
        ("--temperature hot Hello", "'--temperature': 'hot' is not a number.\n"),  # as in a call
        ("--truncate-prompt up Hello", "'up' is not one of 'left', 'right'.\n"),
    ):
        code, out, err = command(*words.split())
        assert said in err and (code, out, asked) == (2, "", []) and "Traceback" not in err


@pytest.mark.parametrize("words", ["ask Hello", "chat", "eval gsm8k", "batch in.jsonl out.jsonl"])
def test_wrong_option_is_refused_before_an_engine_starts(words, monkeypatch, command):
    Path("in.jsonl").write_text('{"prompt": "Hi"}\n')

    def start(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr("_inf.apps.eval.benchmarks.benchmark_rows", start)
    monkeypatch.setattr("_inf.backends.registry.launch", start)
    for options, said in (
        ("--temperature -1", "temperature: -1"),
        ("--no-do-sample --top-p 0.5", "do_sample: False means greedy, but top_p=0.5"),
        ("--set rollout.dtpye=float32", "rollout.dtpye"),
        ("--min-tokens 9 --max-tokens 3", "min_tokens: 9"),
        ("--model a --set model_path=b", "--model: --set model_path is given too"),
    ):
        code, _, err = command(*words.split(), *options.split())
        assert code == 2 and err.startswith(f"inf: {said}") and err.count("\n") == 1
        assert [file.name for file in Path().iterdir()] == ["in.jsonl"]


def test_help_shows_the_default_of_each_option(command):
    code, lines, _ = command("--help")
    text = " ".join(lines.split())
    embedded = load_config(None, {}).rollout
    assert code == 0 and not embedded.do_sample
    assert f"greedy, at most {embedded.response_length} tokens" in text
    named = re.findall(r"\[default: \(rollout\.(\w+)", text)
    assert len(named) >= 7 and set(named) <= RolloutConfig.model_fields.keys()


def test_character_that_stdout_cannot_show_is_printed_by_its_number(monkeypatch):
    row = {"number": 0, "prompt": "1?", "reward": 1.0, "data_source": "数学 é"}
    Path("a.jsonl").write_text(json.dumps(row))
    stdout = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "argv", ["inf", "eval", "compare", "a.jsonl", "a.jsonl"])
    monkeypatch.setattr(Options, "own_process", False)
    assert main() == 0
    stdout.flush()
    assert "\\u6570\\u5b66 é" in stdout.buffer.getvalue().decode("latin-1")
