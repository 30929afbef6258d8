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
from typing import Any

import pytest

import inf
from _inf.apps.cli import main
from _inf.apps.cli.options import SAMPLING
from _inf.config import load_config
from _inf.request.combinations import REFUSED
from _inf.request.keywords import GenerateParams
from _inf.request.sampling import check_params
from inf import GenerationOutput, GenerationRow, PromptError, StreamChunk

ANSWER = "one two three four"


class Stub:
    """Answers every prompt with `ANSWER`, and refuses "bad"."""

    config = load_config(None, {})

    def stats(self) -> dict[str, float]:
        return {"cached_tokens": 0}

    def stream(self, messages: list[dict[str, str]], **params: Any) -> Iterator[StreamChunk]:
        if messages[-1]["content"] == "bad":
            raise PromptError("prompt 0: it is bad")
        yield StreamChunk(ANSWER[:5], [1], None)
        yield StreamChunk(ANSWER[5:], [2], "stop")

    def generate(self, prompts: list[Any], **params: Any) -> GenerationOutput:
        check_params(params, self.config.rollout)
        if not prompts:
            return GenerationOutput()
        list(self.stream(prompts))
        about: dict[str, Any] = {"finish_reason": "stop", "prompt_tokens": len(prompts)}
        return GenerationOutput([GenerationRow(ANSWER, [1, 2], [-0.5, -0.5], **about)])


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """`chat(lines, *arguments)` returns exit code, stdout and stderr."""
    monkeypatch.setattr(inf, "InferenceEngine", lambda *a, **kw: contextlib.nullcontext(Stub()))
    monkeypatch.chdir(tmp_path)

    def run(lines: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        capsys.readouterr()
        return (main(["chat", *arguments]), *capsys.readouterr())

    return run


@pytest.mark.parametrize("end", ["", "/quit\nd\n", "/exit\nd\n"])
def test_empty_line_stands_between_piped_answers(end: str, chat: Any) -> None:
    code, out, _ = chat(f"a\nb\nc\n{end}")
    assert (code, out) == (0, f"{ANSWER}\n\n{ANSWER}\n\n{ANSWER}\n")


def test_json_is_a_line_for_each_message_that_remembers_the_turns_before(chat: Any) -> None:
    code, out, _ = chat("/set logprobs 2\na\nbad\nb\n", "--json")
    first, bad, second = map(json.loads, out.splitlines())
    assert code == 1 and bad == {"error": "prompt 0: it is bad"}
    assert first["completion"] == second["completion"] == ANSWER
    assert (first["prompt_tokens"], second["prompt_tokens"]) == (1, 3)


@pytest.mark.parametrize("text", ['a\n"""\nb\n', "a\nb \\\n", 'a\n"""'])
def test_input_that_ends_inside_a_message_is_named_and_not_sent(text: str, chat: Any) -> None:
    code, out, err = chat(text)
    assert (code, out) == (1, f"{ANSWER}\n")
    assert "ended inside a message, which was not sent" in err
    answer, error = map(json.loads, chat(text, "--json")[1].splitlines())
    assert answer["completion"] == ANSWER and "was not sent" in error["error"]


def test_ctrl_c_in_a_piped_answer_ends_the_chat(chat: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def interrupted(self: Stub, messages: Any, **params: Any) -> Iterator[StreamChunk]:
        asked.append(messages[-1]["content"])
        yield StreamChunk(ANSWER[:5], [1], None)
        raise KeyboardInterrupt

    monkeypatch.setattr(Stub, "stream", interrupted)
    assert chat("a\nb\n")[0] == 130 and asked == ["a"]


def test_chat_ends_when_nobody_reads_its_answers(
    chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def answer(self: Stub, messages: Any, **params: Any) -> Iterator[StreamChunk]:
        asked.append(messages[-1]["content"])  # when it is called: an engine begins then
        return iter([StreamChunk(ANSWER, [1], "stop")])

    monkeypatch.setattr(Stub, "stream", answer)
    for more in ([], ["--json"]):
        reader, writer = os.pipe()
        os.close(reader)  # as `head -c 1` does
        with monkeypatch.context() as piped, contextlib.suppress(BrokenPipeError):
            with open(writer, "w") as stdout:
                piped.setattr(sys, "stdout", stdout)
                with pytest.raises(SystemExit, match="1"):
                    chat("a\nb\nc\n", *more)
    assert asked == ["a", "a"]


def test_save_through_a_pipe_leaves_a_file_that_exists_and_says_how_to_go_on(chat: Any) -> None:
    Path("talk.jsonl").write_text("precious")
    code, _, err = chat("a\n/save talk.jsonl\n/save new.jsonl\n")
    assert code == 1 and "talk.jsonl already exists" in err and "name another file" in err
    assert Path("talk.jsonl").read_text() == "precious"
    assert len(json.loads(Path("new.jsonl").read_text())["messages"]) == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("stop ###", "###"),
        ("stop a: b", "a: b"),
        ("stop true", "true"),
        ('stop ["###", "\\n"]', ["###", "\n"]),
        ("regex [ab]", "[ab]"),
        ("regex [12]", "[12]"),
        ('json_schema {"type": "null"}', '{"type": "null"}'),
        ("temperature 1e-1", 0.1),
        ("temperature=0.1", 0.1),
        ("temperature = 0.1", 0.1),
        ("top-k 5", 5),
        ("ignore_eos true", True),
        ("stop_token_ids [5, 6]", [5, 6]),
        ('logit_bias {"5": 1}', {"5": 1}),
    ],
)
def test_set_reads_a_value_as_it_was_meant(
    text: str, value: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    stream = Stub.stream

    def heard(self: Stub, messages: Any, **params: Any) -> Iterator[StreamChunk]:
        asked.append(params)
        return stream(self, messages)

    monkeypatch.setattr(Stub, "stream", heard)
    name = re.split("[ =]", text)[0]
    assert chat(f"/set {text}\na\n/set {name} none\na\n")[0] == 0
    given, after = (params.get(name.replace("-", "_")) for params in asked)
    assert (given, type(given), after) == (value, type(value), None)


def test_bare_set_shows_what_was_set_and_what_the_config_says(chat: Any) -> None:
    _, _, err = chat("/set\n", "--top-k", "5", "--set", "rollout.n=1")
    given, others = err.splitlines()[-2:]
    assert given == "set: top_k=5"
    assert others.startswith("by default: ") and "top_k" not in others
    for name in ("temperature=", "top_p=1.0", "min_p=0.0", "max_tokens=512", "ignore_eos=False"):
        assert name in others
    assert "by default: temperature=0.0, " in chat("/set\n")[2]  # greedy, as embedded.yaml says


@pytest.mark.parametrize(
    ("text", "says", "how"),
    [
        *((text, f"{text.split()[0]}: ", []) for text in ("progress true", "num_beams 2")),
        *((text, f"{text.split()[0]}: ", []) for text in ("logprobs 2", "prompt_logprobs true")),
        *((text, f"{text.split()[0]}: ", []) for text in ("sampling_mask true", "temperature hot")),
        ("max_tokens_per_turn 5", "max_tokens_per_turn: ", []),
        ("n 3", "n: ", ["--json"]),
        ('tools [{"type": "function", "function": {"name": "f"}}]', "tools: ", ["--json"]),
        *((text, "/set: it needs NAME VALUE", []) for text in ("temperature", "=3")),
    ],
)
def test_set_of_what_a_chat_cannot_use_is_refused(
    text: str, says: str, how: list[str], chat: Any
) -> None:
    code, _, err = chat(f"/set {text}\na\n", *how)
    assert code == 1 and f"inf: {says}" in err and "\nset: " not in err


def test_every_keyword_is_usable_in_a_chat_or_refused_by_it() -> None:
    refused = {*REFUSED["chat"], *REFUSED["text chat"], *REFUSED["streamed chat"]}
    usable = {*SAMPLING, "tools_kwargs"} - refused
    assert refused | usable == set(GenerateParams.__annotations__)
    assert main(["chat", "--num-beams", "2"]) == 2
