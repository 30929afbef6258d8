"""Every format of tool calls: exact positions, no lost call, no exception."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _inf.config.tool_formats import FORMATS, OWN, SGLANG
from _inf.errors import ToolError
from _inf.tools.definition import as_tools
from _inf.tools.parsing import parse, tool_instructions
from _inf.types import ToolCall
from tests.support.tool_call_forms import written_call as written

PARAMETERS = {
    "type": "object",
    "properties": {"query": {"type": "string"}, "count": {"type": "integer"}},
}
TOOLS = as_tools([{"name": "search", "description": "Search.", "parameters": PARAMETERS}])


CALLED = '{"name": "search", "arguments": {"query": "</tool_call>"}}'


def only(text: str, format: str) -> ToolCall:
    (call,) = parse(text, format, TOOLS).calls
    return call


# ─── Every format ───


@pytest.mark.verl
def test_every_parser_of_sglang_and_verl_is_a_format():
    import verl
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    source = Path(verl.__file__).parent / "experimental/agent_loop/tool_parser.py"
    verls = set(re.findall(r'ToolParser.register\("(.+)"\)', source.read_text()))
    theirs = set(FunctionCallParser.ToolCallParserEnum)
    assert set(FORMATS) == theirs | {"json", "xml", "function", "gemma4", "llama3_json"}
    assert verls and verls <= set(FORMATS)
    assert set(SGLANG) == theirs - {*OWN, "qwen", "qwen25", "glm", "glm47", "step3p5"}


@pytest.mark.parametrize("format", FORMATS)
def test_a_call_is_read_also_of_an_unknown_tool(format):
    for name, tools in (("search", TOOLS), ("find", [])):
        (call,) = parse(written(format, name), format, tools).calls
        assert (call.name, call.arguments, call.error) == (name, {"query": "Python"}, None)


@pytest.mark.parametrize("format", FORMATS)
def test_instructions_show_a_call_that_is_read_or_there_are_none(format):
    told = tool_instructions(TOOLS, format)
    assert bool(told) == (format in ("hermes", "qwen", "qwen25"))
    if told:
        assert json.dumps(TOOLS[0].schema["function"]) in told
        call = only(told[told.index("<tool_call>") :], format)
        assert (call.name, call.arguments) == ("NAME", {"ARG": "VALUE"})


@pytest.mark.parametrize("format", FORMATS)
def test_a_text_without_a_call_is_all_content(format):
    for text in ("", "f(x) = {1: 'a'} < 3 [see (1)]", "  \n"):
        parsed = parse(text, format, TOOLS)
        assert (parsed.content, parsed.calls) == (text, [])


@pytest.mark.parametrize("format", FORMATS)
def test_a_call_that_is_cut_is_an_error_and_its_half_value_is_not_used(format):
    whole = written(format)
    call = only(whole[: whole.index("Python") + 3], format)
    assert call.error and call.arguments == {}
    assert call.end_pos == whole.index("Python") + 3


@pytest.mark.parametrize("format", FORMATS)
def test_a_mangled_call_raises_nothing_and_is_not_lost(format):
    whole = written(format)
    call = only(whole[: whole.index("query")] + "}]]" + whole[whole.index("Python") + 3 :], format)
    assert call.arguments == {}  # which the tool's schema then judges


@pytest.mark.parametrize("format", SGLANG)
def test_a_lost_call_beside_a_good_one_is_noticed(format):
    calls = parse(f"{SGLANG[format]} no call\n{written(format)}", format, TOOLS).calls
    assert any(call.error for call in calls), calls


@pytest.mark.verl
def test_a_parsers_call_spans_the_whole_text_it_was_given():
    text = f"Let me see. {written('deepseekv3')}"
    call = only(text, "deepseekv3")
    assert (call.raw_text, call.start_pos, call.end_pos) == (text, 0, len(text))
    assert parse(text, "deepseekv3", TOOLS).content == "Let me see."


def test_a_wrong_format_is_refused_with_the_nearest():
    with pytest.raises(ToolError, match="format: 'hermess' .*did you mean 'hermes'"):
        parse("", "hermess", [])
    with pytest.raises(ToolError, match="format: 3 is not"):
        parse("", 3, [])


# ─── Our own: positions ───


@pytest.mark.parametrize("format", OWN)
def test_calls_among_prose_are_found_where_they_are(format):
    first, second = written(format), written(format, "find", "second")
    for prose in ("", "1 < 2, {so}\n", "é😀 ", 'I call "it" now. '):
        text = f"{prose}{first}\n{prose}{second} {prose}"
        calls = parse(text, format, TOOLS).calls
        assert [(call.name, call.error) for call in calls] == [("search", None), ("find", None)]
        assert [call.arguments["query"] for call in calls] == ["Python", "second"]
        assert calls[0].raw_text in first and calls[1].raw_text in second
        assert len(prose) <= calls[0].start_pos <= text.index("Python") < calls[0].end_pos
        assert len(prose) * 2 + len(first) < calls[1].start_pos


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(OWN),
    st.text(st.sampled_from("<>/{}[]()\",= \nax:\\'") | st.characters()),
)
def test_no_text_raises_and_every_span_is_its_raw_text(format, noise):
    whole = written(format)
    for text in (noise, whole[: len(whole) // 2] + noise, noise + whole + noise):
        parsed, last = parse(text, format, TOOLS), 0
        for call in parsed.calls:
            assert text[call.start_pos : call.end_pos] == call.raw_text
            assert last <= call.start_pos < call.end_pos <= len(text)
            last = call.end_pos


@pytest.mark.parametrize("format", OWN)
@pytest.mark.parametrize(
    "piece",
    [
        "<tool_call>", '{"tool": ', "<invoke>", "<invoke><tool_name>", "f(x=", "search(",
        "[f(a=1, b=1, c=1, d=1, ", "[search(a='", "f(x=1 ", '<tool_call>{"name": ',
        "<function=", "<function=f><parameter=a>", "<tool_call>f<arg_key>", '<invoke name="',
        '<invoke name="f"><parameter name="a">', "<|tool_call>call:f{",
        '<|tool_call>call:f{a:<|"|>',
    ],
)  # fmt: skip
def test_a_model_that_repeats_itself_is_read_in_no_time(format, piece):
    def seconds(pieces: int) -> float:
        start = time.process_time()
        parse(piece * pieces, format, TOOLS)
        return time.process_time() - start

    seconds(1)
    assert seconds(3200) < 200 * max(seconds(200), 0.02)  # 16 if linear; some regexes never end


@pytest.mark.parametrize(
    ("format", "text", "arguments"),
    [
        ("hermes", f"<tool_call>{CALLED}\n\n</tool_call>", {"query": "</tool_call>"}),
        (
            "hermes",  # JSON in a string
            '<tool_call>{"name": "search", "arguments": "{\\"query\\": \\"x\\"}"}</tool_call>',
            {"query": "x"},
        ),
        ("hermes", '<tool_call>{"name": "search", "arguments": ""}</tool_call>', {}),
        (
            "llama3_json",  # without its tag
            '\n{"name": "search", "parameters": {"query": "x"}}',
            {"query": "x"},
        ),
        (
            "gpt-oss",  # after its generation prompt
            written("gpt-oss").removeprefix("<|start|>assistant").removesuffix("<|call|>"),
            {"query": "Python"},
        ),
        (
            "xml",  # values of the schema's types
            "<invoke><tool_name>search</tool_name><parameters><query>5</query><count>5</count>"
            "<other>a &lt; b</other></parameters></invoke>",
            {"query": "5", "count": 5, "other": "a < b"},
        ),
        (
            "function",  # with names of JSON, as OLMo 3 writes them
            "<function_calls>\nsearch(query='5', count=null, other={'a': [true, False]})\n"
            "</function_calls>",
            {"query": "5", "count": None, "other": {"a": [True, False]}},
        ),
        (
            "qwen3_coder",  # without its wrapper
            "<function=search>\n<parameter=query>\n6 < 7\n</parameter>\n</function>",
            {"query": "6 < 7"},
        ),
        (
            "glm47",  # on one line
            "<tool_call>search<arg_key>query</arg_key><arg_value>5</arg_value><arg_key>other"
            '</arg_key><arg_value>["a"]</arg_value></tool_call>',
            {"query": "5", "other": ["a"]},
        ),
        (
            "minimax-m2",
            '<invoke name="search">\n<parameter name="query">5</parameter>\n</invoke>',
            {"query": "5"},
        ),
        (
            "gemma4",  # nested values; keys in a string are none
            '<|tool_call>call:search{count:5,other:{a:[true,<|"|>b<|"|>]},query:<|"|>"x": {y:1}\n'
            '<|"|>}<tool_call|>',
            {"count": 5, "other": {"a": [True, "b"]}, "query": '"x": {y:1}\n'},
        ),
    ],
)
def test_call_of_another_spelling_is_read(format, text, arguments):
    call = only(text, format)
    assert (call.name, call.arguments, call.error) == ("search", arguments, None)


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("llama3", '{"answer": 3}'),
        ("gpt-oss", "<|start|>assistant<|channel|>commentary<|message|>First I look.<|end|>"),
        ("json", '{"name": "Ada", "age": 3}'),
        ("json", '{"name": "Ada'),
        ("function", "see note(a=b), it's f(x == 1)"),
        ("function", "(a) sin(2), don't(x='"),
    ],
)
def test_an_answer_that_resembles_a_call_is_none(format, text):
    assert parse(text, format, TOOLS) == parse(text, format, [])
    assert parse(text, format, TOOLS).calls == []
    assert parse(text, format, TOOLS).content == text


@pytest.mark.parametrize(
    ("format", "text", "says"),
    [
        (
            "hermes",
            '<tool_call>{"name": "search", "arguments": {}}',
            "</tool_call> does not follow its JSON",
        ),
        ("hermes", f"<tool_call>[{CALLED}]</tool_call>", "is not an object"),
        ("json", '{"tool": "search", "arguments": {"tool": "delete", "arguments": {}}', ""),
        ("function", "search('Python')", 'every argument needs its name: name(key="value", ...)'),
        ("function", "search(query=x + 1)", "query is not a literal"),
        ("function", "search(", "its bracket is not closed"),
    ],
)
def test_a_wrong_call_gets_a_text_that_says_how_to_call(format, text, says):
    error = only(text, format).error
    assert error and says in error


@pytest.mark.parametrize("format", ["json", "xml", "deepseekv32"])
def test_arguments_nested_deeper_than_other_code_can_copy_are_an_error(format):
    for levels, faulty in ((40, False), (400, True)):
        nested = "[" * levels + "]" * levels
        call = {
            "json": f'{{"tool": "f", "arguments": {{"x": {nested}}}}}',
            "xml": "<invoke><tool_name>f</tool_name><parameters>"
            f"<x>{nested}</x></parameters></invoke>",
            "deepseekv32": f'<｜DSML｜invoke name="f">{{"x": {nested}}}</｜DSML｜invoke>',
        }[format]
        (found,) = parse(call, format, []).calls
        assert ("levels deep" in (found.error or "")) == faulty == (found.arguments == {})


def test_a_broken_hermes_call_does_not_take_the_next_with_it():
    good = '<tool_call>{"name": "search", "arguments": {}}</tool_call>'
    for broken in (
        "<tool_call>{'name': 'search'}</tool_call>",
        '<tool_call>{"name": "search"',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "search", "arguments": 3}</tool_call>',
    ):
        first, second = parse(f"a {broken} b {good} c", "hermes", TOOLS).calls
        assert first.error and first.start_pos == 2
        assert (second.name, second.error, second.raw_text) == ("search", None, good)


@pytest.mark.parametrize("format", ["json", "xml", "function"])
def test_a_fence_about_a_call_is_no_text_of_the_answer(format):
    assert parse(f"Sure:\n```\n{written(format)}\n```\n", format, TOOLS).content == "Sure:"


def test_a_pythonic_call_stands_in_a_list_that_may_be_left_open():
    text = "Sure: [search(query='a'), find(query=\"b)\", deep=[{'x': -1}])] there."
    parsed = parse(text, "pythonic", TOOLS)
    assert [call.name for call in parsed.calls] == ["search", "find"]
    assert parsed.calls[1].arguments == {"query": "b)", "deep": [{"x": -1}]}
    assert parsed.content == "Sure:  there."
    assert parse("Then print(end='') and f(x=1).", "pythonic", TOOLS).calls == []
    assert only("[search(query='a'), see note(a=1)]", "pythonic").arguments == {"query": "a"}
    assert only("[\n  search(query='a')", "pythonic").arguments == {"query": "a"}


@pytest.mark.parametrize("beside", ["\0", "\0\1\2", "[\0]", "```\0```"])
def test_text_beside_a_call_is_kept_whatever_its_characters(beside):
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parse(f"{beside} {call}", "hermes", TOOLS).content == beside
