"""How the command line is divided: a prompt, or a command first. No engine starts."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

import inf
from _inf.cli import main
from inf import GenerationOutput

COMMANDS = ("ask", "chat", "batch", "eval", "check")


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What an engine is asked."""
    asked: list[str] = []

    class Recorder:
        def generate(self, prompt: str, **params: Any) -> GenerationOutput:
            asked.append(prompt)
            return GenerationOutput.empty()

    monkeypatch.setattr(
        inf, "InferenceEngine", lambda *args, **kwargs: contextlib.nullcontext(Recorder())
    )
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
    assert "--config" in text and "--set" in text


@pytest.mark.parametrize("arguments", [["ask", "chat"], ["--", "chat"], ["--n", "1", "--", "chat"]])
def test_word_of_a_command_can_be_a_prompt(arguments: list[str], prompts: list[str]) -> None:
    assert main(arguments) == 0
    assert prompts == ["chat"]


def test_value_of_an_option_is_no_command(prompts: list[str]) -> None:
    assert main(["--stop", "chat", "Hello"]) == 0
    assert prompts == ["Hello"]


@pytest.mark.parametrize("command", COMMANDS)
def test_command_after_its_options_is_refused_and_not_asked(
    command: str, prompts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--temperature", "0", command]) == 2
    err = capsys.readouterr().err
    assert f"inf {command} ..." in err and f"inf ask ... {command}" in err
    assert prompts == []


def test_benchmark_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "gsm9k"]) == 2
    assert "gsm9k" in capsys.readouterr().err
