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
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """The prompts that an engine gets, with their parameters."""
    asked: list[tuple[str, Any]] = []

    class Recorder:
        def generate(self, prompt: str, **params: Any) -> GenerationOutput:
            asked.append((prompt, params))
            return GenerationOutput()

    engine = contextlib.nullcontext(Recorder())
    monkeypatch.setattr(inf, "InferenceEngine", lambda *args, **kwargs: engine)
    return asked


@pytest.mark.parametrize(
    "arguments",
    [
        *(["ask", "chat"], ["--n", "1", "--", "chat"], ["--stop", "chat", "Hello"], ["--", "--n"]),
        *(["--", "chaat"], ["Chat with me"]),
    ],
)
def test_prompt_that_is_no_command_is_asked(arguments: list[str], asked: list[Any]) -> None:
    """Behind `ask` or `--`, or where it resembles none."""
    assert main(arguments) == 0
    assert [prompt for prompt, _ in asked] == arguments[-1:]


def test_nothing_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("Usage: inf") and "inf chat" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chaat"], "did you mean inf chat ...?"),
        (["bach", "in.jsonl", "out.jsonl"], "did you mean inf batch ...?"),
        (["--temperature", "0", "check"], "As a prompt it is: inf ask check"),  # after its options
        (["ask", "Hello", "--logit-bias", "{"], "'--logit-bias': '{' is not JSON"),
        (["ask", "Hello", "--logit-bias", "[1]"], "'[1]' is not a JSON object"),
        (["eval", "gsm9k"], "gsm9k"),
        (["--max_token", "5", "Hello"], "--max-tokens"),
        (["Hello", "World"], "World"),
        (["--temperature", "hot", "Hello"], "number"),
    ],
)
def test_command_or_argument_of_another_form_is_named_and_nothing_is_asked(
    arguments: list[str], words: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert words in err and (out, asked) == ("", []) and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--temperature", "-1"], "temperature: -1"),
        (["--no-do-sample", "--top-p", "0.5"], "do_sample: False means greedy, but top_p=0.5"),
        (["--set", "rollout.dtpye=float32"], "rollout.dtpye"),
        (["--min-tokens", "9", "--max-tokens", "3"], "min_tokens: 9"),
        (["--model", "a", "--set", "model_path=b"], "--model: --set model_path is given too"),
    ],
)
@pytest.mark.parametrize(
    "command", [["ask", "Hello"], ["chat"], ["eval", "gsm8k"], ["batch", "in.jsonl", "out.jsonl"]]
)
def test_wrong_option_is_refused_before_an_engine_starts(
    command: list[str],
    arguments: list[str],
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text('{"prompt": "Hi"}\n')

    def start(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr("_inf.apps.eval.gsm8k.benchmark_rows", start)
    monkeypatch.setattr("_inf.backends.registry.launch", start)
    assert main([*command, *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"inf: {word}") and err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["in.jsonl"]


def test_help_shows_the_default_of_each_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out
    listed = lines[lines.index("Commands:") :]
    assert all(f"  {command} " in listed for command in ("ask", "chat", "batch", "eval", "check"))
    text = " ".join(lines.split())
    embedded = load_config(None, {}).rollout
    assert not embedded.do_sample
    assert f"greedy, at most {embedded.response_length} tokens" in text
    assert "--max-tokens <int> The most tokens to generate. [default: (rollout.response_" in text
    named = re.findall(r"\[default: \(rollout\.(\w+)", text)
    assert len(named) >= 7 and set(named) <= RolloutConfig.model_fields.keys()


def test_character_that_stdout_cannot_show_is_printed_by_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {"number": 0, "prompt": "1?", "reward": 1.0, "data_source": "数学 é"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    monkeypatch.chdir(tmp_path)
    stdout = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "argv", ["inf", "eval", "compare", "a.jsonl", "a.jsonl"])
    monkeypatch.setattr(Options, "own_process", False)
    assert main() == 0
    stdout.flush()
    assert "\\u6570\\u5b66 é" in stdout.buffer.getvalue().decode("latin-1")  # type: ignore[attr-defined]
