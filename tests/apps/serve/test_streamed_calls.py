"""What a stream says of an answer with calls is what the whole response says, in every format, with
the answer's text arriving a character at a time."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest

from _inf.apps.rendered_call import RenderedCall
from _inf.apps.serve.choice import Choice
from _inf.config.tool_formats import FORMATS
from _inf.response.streaming import StreamChunk
from _inf.tools.definition import shown_tools
from _inf.types import Prompt
from tests.support.conversation_rules import rules
from tests.support.tool_call_forms import written_call

MARKS = re.compile(r"<[|｜][^<>]*[|｜]>|\[TOOL_CALLS\]")
FIRST_MARK = 0x110000  # above all characters
SEARCH = {"name": "search", "parameters": {"properties": {"query": {"type": "string"}}}}
BEFORE = (
    "",
    "Let me look.\n",
    "\n\nI search (again) for 2(x) and f(x):\n",
    "A function call is what I need. ",
    "<think>I may search or search(query='no').</think>\n\nSo:\n",
    "hmm, a function call</think>Now ",
)
PLAIN = ("I will search", "search (for it)", "a function", "function call", "x[1] is {y}", "so `f")


class Characters:
    """A tokenizer of characters, in which each mark of a format is one special token."""

    def __init__(self, text: str, *, marks: bool) -> None:
        self._marks = list(dict.fromkeys(MARKS.findall(text))) if marks else []
        self.all_special_ids = [FIRST_MARK + n for n in range(len(self._marks))]
        pieces = re.split(f"({MARKS.pattern})", text) if marks else [text]
        self.ids: list[int] = []
        for piece in pieces:
            known = piece in self._marks
            self.ids += [FIRST_MARK + self._marks.index(piece)] if known else map(ord, piece)

    def decode(self, ids: list[int], *, skip_special_tokens: bool, **_: Any) -> str:
        shown = [i for i in ids if i < FIRST_MARK or not skip_special_tokens]
        return "".join(chr(i) if i < FIRST_MARK else self._marks[i - FIRST_MARK] for i in shown)


def streamed(
    text: str, format: str, *, marks: bool, pieces: int, forced: bool = False, why: str = "stop"
) -> tuple[list[str], Choice]:
    """The events' contents and the finished choice, the answer's ids arriving `pieces` at once."""
    tokenizer = Characters(text, marks=marks)
    tools = {tool.name: tool for tool in shown_tools([SEARCH])}
    own = rules(None, tokenizer, tools=tools, eos=0, multi_turn={"format": format})
    call = RenderedCall(cast(Any, None), [Prompt([1])], {"n": 1}, own, forced, False)
    choice, ids = Choice(call, 0), tokenizer.ids
    new = [ids[start : start + pieces] for start in range(0, len(ids), pieces)]
    chunks = [
        StreamChunk(tokenizer.decode(few, skip_special_tokens=True), few, None, [0.0] * len(few))
        for few in new
    ]
    chunks.append(StreamChunk("", [], why, [], None, {"matched_stop": None}))
    return [choice.add(chunk)[1] for chunk in chunks], choice


@pytest.mark.parametrize("marks", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_streamed_text_is_that_of_the_whole_answer(format, marks):
    for before in BEFORE:
        text = before + written_call(format)
        _, whole = streamed(text, format, marks=marks, pieces=len(text))
        contents, choice = streamed(text, format, marks=marks, pieces=1)
        [call] = whole.message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"query": "Python"}
        said = whole.message["content"] or ""
        assert "".join(contents) == said == (choice.message["content"] or "")
        assert said.strip() == before.strip()
        assert choice.finish_reason == "tool_calls"


@pytest.mark.parametrize("format", FORMATS)
def test_streamed_answer_without_a_call_is_whole(format):
    for text in (*PLAIN, *map(" ".join, zip(BEFORE, PLAIN, strict=True))):
        contents, choice = streamed(text, format, marks=True, pieces=1)
        assert "".join(contents) == choice.message["content"] == text


def test_text_streams_before_a_call_in_the_function_format():
    text = "Let me look at it. " + written_call("function")
    contents, _ = streamed(text, "function", marks=True, pieces=1)
    assert "".join(contents[: text.index("search")]) == "Let me look at it."


CALL = '{"name": "search", "arguments": {"query": "Py"}}'


@pytest.mark.parametrize(("before", "arguments"), [("", []), (f"[{CALL}, ", ['{"query": "Py"}'])])
def test_forced_call_that_a_limit_cut_is_a_call_as_far_as_it_came(before, arguments):
    for size in range(len(CALL)):
        text = before + CALL[:size]
        contents, choice = streamed(text, "hermes", marks=True, pieces=1, forced=True, why="length")
        assert "".join(contents) == "" and choice.finish_reason == "length"
        begun = CALL[:size].partition('"arguments":')
        expected = [*arguments, *([begun[2].lstrip()] if begun[1] else [])]
        calls = choice.message.get("tool_calls") or []
        assert [each["function"]["arguments"] for each in calls] == expected
        assert choice.message["content"] == (None if calls else "")
        assert {each["function"]["name"] for each in calls} <= {"search"}


def test_aborted_answer_says_so_although_it_has_a_call():
    for text, forced in ((CALL, True), (written_call("hermes"), False)):
        _, choice = streamed(text, "hermes", marks=True, pieces=1, forced=forced, why="abort")
        assert len(choice.message["tool_calls"]) == 1 and choice.finish_reason == "abort"
