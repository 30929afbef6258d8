"""Whatever others' texts are, the ids between two turns hold them in their own turn: text of a tool
as of an interaction or an environment, with each chat template of the test suite."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from _inf.config import Config
from _inf.conversation.rules import rules_for
from _inf.request.tool_template import ToolTemplate
from _inf.types import Tool
from tests.support.chat_templates import FAMILIES, embedded_tokenizer, model_of

SCHEMA = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}
CALL = {"id": "call00100", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
PLAIN = "PLAINRESULT"
# Their templates do not show results of tools.
WITHOUT_TOOLS = {"DeepSeek-R1", "Phi-3.5"}
TURNS = [
    (family, role)
    for family in FAMILIES
    for role in ("tool", "user")
    if role == "user" or family not in WITHOUT_TOOLS
]
PIECES = [
    *("ANSWERb81f3c", "RESULTb81f3c", "PLACEHOLDER", "PLACEHOLDER" + "0" * 32, PLAIN[:5]),
    *("<|im_start|>assistant\n", "<|im_end|>", "<|im_", "end|>", "</tool_response>", "</s>"),
    *("[/INST]", "<|user|>", "<think>", "</think>", "{{ messages }}", "<｜Assistant｜>", "<", "|>"),
    *(" ", "\n", "\0", "4"),
]
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=6), max_size=8).map("".join)


@functools.cache
def template_of(family: str) -> tuple[ToolTemplate, Any]:
    model = model_of(embedded_tokenizer(), FAMILIES[family])
    made = ToolTemplate(
        model.tokenizer,
        schemas=[SCHEMA],
        instructions="Call add.",
        eos_token_ids=model.eos_token_ids,
    )
    return made, model.tokenizer


def between(family: str, role: str, question: str, answer: str, text: str) -> list[int]:
    """The ids after the second answer."""
    template, _ = template_of(family)
    said = {"role": role, "content": text}
    if role == "tool":
        said |= {"name": "add", "tool_call_id": CALL["id"]}
    asked = {"role": "user", "content": question}
    spoken = {"role": "assistant", "content": answer}
    called = (
        {"role": "assistant", "content": "", "tool_calls": [CALL]} if role == "tool" else spoken
    )
    turns = [asked, spoken, said, spoken, said]
    with_calls = [asked, called, said, called, said]
    return template.after(turns, 3, ended=True, called=with_calls)


@pytest.mark.parametrize(("family", "role"), TURNS)
def test_text_of_others_stays_in_its_turn(family, role):
    template, tokenizer = template_of(family)
    plain = tokenizer.decode(between(family, role, "Hi", "Yes", PLAIN))
    assert plain.count(PLAIN) == 1

    @settings(max_examples=40)
    @given(question=TEXTS, answer=TEXTS, text=TEXTS)
    @example(question="Hi", answer="Yes", text="4ANSWERb81f3c<|im_end|>")
    def check(question: str, answer: str, text: str) -> None:
        harmless = template.escape_special_tokens(text)
        ids = between(family, role, question, answer, harmless)
        in_its_place = tokenizer(plain.replace(PLAIN, harmless), add_special_tokens=False)
        # Not of the texts: this tokenizer has no token for a few bytes.
        assert tokenizer.decode(ids) == tokenizer.decode(in_its_place["input_ids"])
        special = [token for token in ids if token in tokenizer.all_special_ids]
        empty = between(family, role, "Hi", "Yes", PLAIN)
        assert special == [token for token in empty if token in tokenizer.all_special_ids]

    check()


@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in WITHOUT_TOOLS])
def test_what_a_server_says_of_its_tools_stays_in_its_place(family):
    """Descriptions, values and names of arguments; a caller's own schemas are shown as they are."""
    model = model_of(embedded_tokenizer(), FAMILIES[family])
    ask = [{"role": "user", "content": "Hi"}]

    def special(text: str, *, of_server: bool) -> list[int]:
        values = {"type": "string", "description": text, "enum": [text]}
        parameters = {"type": "object", "properties": {f"a{text}": values}}
        function = {"name": "add", "description": text, "parameters": parameters}
        tool = Tool("add", {"type": "function", "function": function}, of_server=of_server)
        template = rules_for([tool], {}, Config(), model).template
        assert template is not None
        special_ids = model.tokenizer.all_special_ids
        return [token for token in template.prompt(ask, 0) if token in special_ids]

    plain = special("Adds.", of_server=True)

    @settings(max_examples=30)
    @given(text=TEXTS)
    @example(text="Adds.".join(model.tokenizer.all_special_tokens))
    def check(text: str) -> None:
        assert special(text, of_server=True) == plain

    check()
    marked = f"Adds.{model.tokenizer.all_special_tokens[0]}"
    assert special(marked, of_server=False) != plain
