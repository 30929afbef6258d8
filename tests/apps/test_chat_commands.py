"""The lines and commands of `inf chat`, with a stub as the engine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

import inf
from _inf.apps.cli.options import SAMPLING
from _inf.config import load_config
from _inf.parts.typed import GenerateParams
from _inf.request.effective import check_params
from _inf.request.keywords import KEYWORDS
from inf import GenerationOutput, GenerationRow, PromptError, StreamChunk

ANSWER = "one two three four"


class Stub:
    """Answers every prompt with `ANSWER`, and refuses "bad"."""

    config = load_config(None, {})

    def stats(self) -> dict[str, float]:
        return {"cached_tokens": 0}

    asked: ClassVar[list[tuple[Any, dict[str, Any]]]] = []

    def stream(self, messages: list[dict[str, str]], **params: Any) -> Iterator[StreamChunk]:
        self.asked.append((messages, params))  # when it is called: an engine begins then
        return self._chunks(messages[-1]["content"])

    def _chunks(self, text: str) -> Iterator[StreamChunk]:
        if text == "bad":
            raise PromptError("prompt 0: it is bad")
        yield StreamChunk(ANSWER[:5], [1], None)
        if text == "interrupt":
            raise KeyboardInterrupt
        yield StreamChunk(ANSWER[5:], [2], "stop")

    def generate(self, prompts: list[Any], **params: Any) -> GenerationOutput:
        check_params(params, self.config.rollout)
        if not prompts:
            return GenerationOutput()
        list(self.stream(prompts))
        about = {"finish_reason": "stop", "prompt_tokens": len(prompts)}
        return GenerationOutput([GenerationRow(ANSWER, [1, 2], [-0.5, -0.5], **about)])


@pytest.fixture
def asked(monkeypatch):
    """The messages and the parameters of each call."""
    monkeypatch.setattr(Stub, "asked", [])
    return Stub.asked


@pytest.fixture
def chat(monkeypatch, command):
    """`chat(lines, *arguments)` returns exit code, stdout and stderr."""
    monkeypatch.setattr(inf, "InferenceEngine", lambda *a, **kw: contextlib.nullcontext(Stub()))

    def run(lines: str, *arguments: str) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return command("chat", *arguments)

    return run


def test_chat_has_room_for_a_conversation_unless_its_config_says_how_much(chat, monkeypatch):
    """What else sets the lengths of a command: `tests/config/test_config.py`."""
    Path("long.yaml").write_text("rollout: {prompt_length: 9}\n")
    started = []

    def start(config: Any) -> Any:
        started.append(config.rollout)
        return contextlib.nullcontext(Stub())

    monkeypatch.setattr(inf, "InferenceEngine", start)
    for option in ("-m", "-c"):
        assert chat("a\n", option, "long.yaml")[0] == 0
    assert [(one.prompt_length, one.response_length) for one in started] == [
        (3072, 1024),
        (9, 1024),
    ]
    assert "prompt_length" not in started[0].model_fields_set  # it fits a short model


def test_pipe_gives_the_answers_with_the_turns_before_in_mind(chat, asked):
    text = 'Hello\n\n"""\ntwo \nlines\n"""\n"""\na\n\nb\n"""\n/quit\nnever\n'
    code, out, err = chat(text, "--system", "Be brief.")
    assert (code, out) == (0, "\n".join([f"{ANSWER}\n"] * 3))
    assert len(re.findall(r"2 tokens, \d+ tok/s, 0 prompt tokens cached", err)) == 3
    said = [{"role": "system", "content": "Be brief."}]
    for (messages, _), content in zip(asked, ("Hello", "two \nlines", "a\n\nb"), strict=True):
        said.append({"role": "user", "content": content})
        assert messages == said
        said.append({"role": "assistant", "content": ANSWER})
    assert chat("/exit\nnever\n")[:2] == (0, "")


def test_json_is_a_line_for_each_message_that_remembers_the_turns_before(chat):
    code, out, _ = chat("/set logprobs 2\na\nbad\nb\n", "--json")
    first, bad, second = map(json.loads, out.splitlines())
    assert code == 1 and bad == {"error": "prompt 0: it is bad"}
    assert first["completion"] == second["completion"] == ANSWER
    assert (first["prompt_tokens"], second["prompt_tokens"]) == (1, 3)


def test_input_that_ends_inside_a_message_is_named_and_not_sent(chat):
    text = 'a\n"""\nb\n'
    code, out, err = chat(text)
    assert (code, out) == (1, f"{ANSWER}\n")
    assert "ended inside a message, which was not sent" in err


def test_ctrl_c_in_a_piped_answer_ends_the_chat(chat, asked):
    assert chat("interrupt\nb\n")[0] == 130 and len(asked) == 1


def test_chat_ends_when_nobody_reads_its_answers(chat, asked, monkeypatch):
    for more in ([], ["--json"]):
        reader, writer = os.pipe()
        os.close(reader)  # as `head -c 1` does
        with monkeypatch.context() as piped, contextlib.suppress(BrokenPipeError):
            with open(writer, "w") as stdout:
                piped.setattr(sys, "stdout", stdout)
                with pytest.raises(SystemExit, match="1"):
                    chat("a\nb\nc\n", *more)
    assert len(asked) == 2


def test_save_through_a_pipe_leaves_a_file_that_exists_and_says_how_to_go_on(chat):
    Path("talk.jsonl").write_text("precious")
    code, _, err = chat("a\n/save talk.jsonl\n/save new.jsonl\n")
    assert code == 1 and "talk.jsonl already exists" in err and "name another file" in err
    assert Path("talk.jsonl").read_text() == "precious"
    assert len(json.loads(Path("new.jsonl").read_text())["messages"]) == 2


def test_set_reads_a_value_as_json_or_text(chat, asked):
    for text, value in (
        ("stop ###", "###"),
        ('stop ["###", "\\n"]', ["###", "\n"]),
        ("regex [ab]", "[ab]"),
        ("top-k  5", 5),
        ('logit_bias {"5": 1}', {"5": 1}),
    ):
        name = text.split()[0].replace("-", "_")
        code, _, err = chat(f"/set {text}\na\n/set {name} null\na\n", "--min-p", "0.1")
        given, after = (params.get(name) for _, params in asked[-2:])
        assert (code, given, type(given), after) == (0, value, type(value), None)
        assert f"set: min_p=0.1, {name}={value}\n" in err and "set: min_p=0.1\n" in err


def test_set_of_what_a_chat_cannot_use_is_refused(chat):
    for text, says, *how in (
        ("num_beams 2", "num_beams: "),  # a chat's, a text chat's and a streamed chat's
        ("logprobs 2", "logprobs: "),
        ("temperature hot", "temperature: "),
        ("n 3", "n: ", "--json"),
        ("temperature", "/set: it needs NAME VALUE"),
    ):
        code, _, err = chat(f"/set {text}\na\n", *how)
        assert code == 1 and f"inf: {says}" in err and "\nset: " not in err
    assert chat("", "--num-beams", "2")[0] == 2


def test_every_keyword_is_usable_in_a_chat_or_refused_by_it():
    kinds = {"chat", "text chat", "streamed chat"}
    refused = {name for name, row in KEYWORDS.items() if kinds & row.refused.keys()}
    usable = {*SAMPLING, "tools_kwargs"} - refused
    assert refused | usable == set(GenerateParams.__annotations__)
