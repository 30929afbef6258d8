"""The command line is a prompt or begins with a command. No engine starts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import inf
from _inf.apps.cli import main
from _inf.config import RolloutConfig, load_config
from inf import GenerationOutput

COMMANDS = ("ask", "chat", "batch", "eval", "check")


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


def test_help_names_each_command_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    listed = text[text.index("Commands:") :]
    for command in COMMANDS:
        assert f"  {command} " in listed
    for example in ('inf "', "inf chat", "inf batch", "inf eval gsm8k"):
        assert f"  {example}" in text[: text.index("Options:")]


@pytest.mark.parametrize("command", [["ask"], ["chat"], ["batch"], ["eval", "gsm8k"], ["check"]])
def test_every_command_has_the_engines_options(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--config", "--model", "--set"))


@pytest.mark.parametrize(
    "arguments",
    [
        *(["ask", "chat"], ["--", "chat"], ["--n", "1", "--", "chat"], ["--stop", "chat", "Hello"]),
        *(["ask", "chaat"], ["--", "chaat"], ["Chat with me"], ["Hello"], ["Paris"]),
    ],
)
def test_prompt_that_is_no_command_is_asked(arguments: list[str], asked: list[Any]) -> None:
    """Behind `ask` or `--`, or where it resembles none."""
    assert main(arguments) == 0
    assert [prompt for prompt, _ in asked] == arguments[-1:]


OWN_PROCESS = """
import contextlib, gc, sys

import inf
from _inf.apps.cli import main

class Counting:
    def generate(self, prompt, **params):
        print(gc.get_freeze_count() > 10_000)
        return inf.GenerationOutput()

inf.InferenceEngine = lambda *_: contextlib.nullcontext(Counting())
sys.argv = ["inf", "Hello"]
main(*eval(sys.stdin.read()))
"""


@pytest.mark.parametrize("arguments", [[], [["Hello"]]])
def test_command_in_its_own_process_keeps_what_the_start_made_from_collections(
    arguments: list[list[str]],
) -> None:
    """With arguments, `main` runs in the process of a program, whose garbage is not ours."""
    ran = subprocess.run(
        [sys.executable, "-c", OWN_PROCESS],
        input=repr(arguments),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.stdout.split() == [str(not arguments)], ran.stderr


@pytest.mark.parametrize("option", ["-n", "--n"])
def test_number_of_answers_is_n(option: str, asked: list[tuple[str, Any]]) -> None:
    assert main(["Hello", option, "3"]) == main([option, "3", "Hello"]) == 0
    assert [(prompt, params["n"]) for prompt, params in asked] == [("Hello", 3)] * 2


@pytest.mark.parametrize("command", COMMANDS)
def test_command_after_its_options_is_refused_and_not_asked(
    command: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--temperature", "0", command]) == 2
    err = capsys.readouterr().err
    assert f"inf {command} ..." in err and f"inf ask {command}" in err
    assert asked == []


@pytest.mark.parametrize(
    ("arguments", "near"),
    [
        (["chaat"], "chat"),
        (["evl", "gsm8k"], "eval"),
        (["bach", "in.jsonl", "out.jsonl"], "batch"),
        (["chek", "--json"], "check"),
        (["--temperature", "0", "chatt"], "chat"),
    ],
)
def test_misspelt_command_is_refused_with_the_nearest_and_not_asked(
    arguments: list[str], near: str, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    err = capsys.readouterr().err
    word = next(each for each in arguments if each[0].isalpha())
    assert f"did you mean inf {near} ...?" in err and f"inf ask {word}" in err
    assert asked == []


def test_nothing_at_all_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("Usage: inf") and "inf chat" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ask", "Hello", "--logit-bias", "{"], "'--logit-bias': '{' is not JSON"),
        (["ask", "Hello", "--logit-bias", "[1]"], "'[1]' is not a JSON object"),
        (["eval", "gsm9k"], "gsm9k"),
        (["--max_token", "5", "Hello"], "--max-tokens"),
        (["Hello", "World"], "World"),
        (["--temperature", "hot", "Hello"], "number"),
        (["--n", "1.5", "Hello"], "integer"),
    ],
)
def test_argument_of_another_form_is_named(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert words in err and out == "" and "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--temperature", "-1"], "temperature: -1"),
        (["--regex", "("], "regex"),
        (["--json-schema", "{"], "json_schema"),
        (["--logit-bias", '{"5": 101}'], "logit_bias[5]: 101 is out of range"),
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

    monkeypatch.setattr("_inf.apps.eval.gsm8k.load_problems", start)
    monkeypatch.setattr("_inf.backends.registry.launch", start)
    assert main([*command, *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"inf: {word}") and err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == ["in.jsonl"]


def test_help_shows_the_default_of_each_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    embedded = load_config(None, {}).rollout
    assert not embedded.do_sample
    assert f"greedy, at most {embedded.response_length} tokens" in text
    assert "--max-tokens <int> The most tokens to generate. [default: (rollout.response_" in text
    named = re.findall(r"\[default: \(rollout\.(\w+)", text)
    assert len(named) >= 7 and set(named) <= RolloutConfig.model_fields.keys()


def test_character_that_stdout_cannot_show_is_printed_by_its_number(tmp_path: Path) -> None:
    row = {"number": 0, "prompt": "1?", "reward": 1.0, "data_source": "数学 é"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    words = ["eval", "compare", "a.jsonl", "a.jsonl"]
    code = "import sys; from _inf.apps.cli import main; sys.exit(main())"
    folder = str(Path(inf.__file__).parent)
    ran = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, "PYTHONPATH": folder, "PYTHONIOENCODING": "latin-1"},
        cwd=tmp_path,
        capture_output=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert "\\u6570\\u5b66 é" in ran.stdout.decode("latin-1")
