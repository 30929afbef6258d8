"""The chat template renders whole prompts, and exactly the text after an answer."""

from __future__ import annotations

import copy
import warnings
from importlib.metadata import version
from typing import Any

import pytest

from _inf.errors import PromptError, ToolError
from _inf.request.tool_template import ToolTemplate
from tests.support.chat_templates import QWEN3
from tests.support.tiny import IM_END, IM_START

USER = {"role": "user", "content": "What is 2 + 2?"}
RESULT = {"role": "tool", "name": "add", "tool_call_id": "call00100", "content": "4"}
SCHEMA = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}

# Templates in the ways of well-known families.
QWEN = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{%- for message in messages %}{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% elif message.role == "assistant" %}<|im_start|>assistant
{{ message.content | trim }}{% for call in message.tool_calls or [] %}
<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
STRICT = """{%- for message in messages %}{%- if message.role == "tool" %}
{%- if not messages[loop.index0 - 1].tool_calls %}{{ raise_exception("no call") }}{% endif %}
[RESULTS]{{ message.content }}[/RESULTS]{% elif message.tool_calls %}
[CALLS]{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}<|im_end|>
{%- elif message.role == "assistant" %} {{ message.content }}<|im_end|>{% else %}
[INST]{{ message.content }}[/INST]{% endif %}{% endfor %}{{ "" if not tools else " " }}"""
AFTER_CALLS = STRICT.replace('{{ raise_exception("no call") }}', "{% continue %}")
ALTERNATING = """{%- set ns = namespace(user=true) %}{%- for message in messages %}
{%- if message.role == "user" or (message.role == "assistant" and not message.tool_calls) %}
{%- if (message.role == "user") != ns.user %}{{ raise_exception("must alternate") }}{% endif %}
{%- set ns.user = not ns.user %}{% endif %}{%- if message.role == "tool" %}
[RESULTS]{{ message.content }}[/RESULTS]{% elif message.tool_calls %}
[CALLS]{% for call in message.tool_calls %}{{ call.function | tojson }}{% endfor %}<|im_end|>
{%- elif message.role == "assistant" %} {{ message.content }}<|im_end|>{% else %}
[INST]{{ message.content }}[/INST]{% endif %}{% endfor %}{{ "" if not tools else " " }}"""
NAMING = """{%- for message in messages %}{%- if message.role == "tool" %}
{%- if not messages[loop.index0 - 1].tool_calls %}{{ raise_exception("no call") }}{% endif %}
<|im_start|>functions.{{ messages[loop.index0 - 1].tool_calls[0].function.name }} to=assistant
{{ message.content }}<|im_end|>{% elif message.tool_calls %}<|im_start|>assistant to=functions.
{{- message.tool_calls[0].function.name }} {{ message.tool_calls[0].function.arguments | tojson }}
<|im_end|>{% else %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>{% endif %}{% endfor %}<|im_start|>assistant{{ tools }}"""
DROPPING = """{%- for message in messages %}{%- if message.role in ["user", "assistant"] %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>{% endif %}{% endfor %}<|im_start|>assistant"""
NO_TOOLS = """{%- for message in messages %}{%- if message.role not in ["user", "assistant"] %}
{{- raise_exception("Conversation roles must alternate") }}{% endif %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


def made(tokenizer: Any, text: str | None, **more: Any) -> ToolTemplate:
    other = copy.deepcopy(tokenizer)
    if text is not None:
        other.chat_template = text
    return ToolTemplate(other, eos_token_ids=[other.convert_tokens_to_ids(IM_END)], **more)


def after(tokenizer: Any, template: ToolTemplate, *said: Any, ended: bool = True) -> str:
    """Return the text after the first assistant message of `said`."""
    place = [message["role"] for message in said].index("assistant")
    return str(tokenizer.decode(template.after(said, place, ended=ended)))


@pytest.mark.parametrize("text", [QWEN, None], ids=["qwen", "plain ChatML"])
def test_what_follows_an_answer_is_the_template_s_own_text(tokenizer, text):
    template = made(tokenizer, text, schemas=[SCHEMA], instructions="Call add.")
    answer = {"role": "assistant", "content": "<tool_call>x</tool_call>"}
    whole = tokenizer.decode(template.prompt([USER, answer, RESULT], 0))
    before = tokenizer.decode(template.prompt([USER], 0))
    follows = after(tokenizer, template, USER, answer, RESULT)
    assert whole == f"{before}{answer['content']}{IM_END}{follows}"
    other = {"role": "assistant", "content": f" padded {IM_END} <think>x</think> "}
    assert after(tokenizer, template, USER, other, RESULT) == follows
    assert ("Call add." in before) is (text is None)  # which does not show the tools
    assert follows.startswith("\n") and follows.endswith(f"{IM_START}assistant\n")
    without_end = after(tokenizer, template, USER, answer, RESULT, ended=False)
    assert without_end == IM_END + follows


def turns(count: int, *, called: bool) -> list[dict[str, Any]]:
    said = [USER]
    for turn in range(count):
        call = {"id": f"call{turn:05}", "function": {"name": "add", "arguments": {"a": 2}}}
        answer = {"role": "assistant", "content": "" if called else "<call>"}
        said += [{**answer, "tool_calls": [call]} if called else answer, RESULT]
    return said


@pytest.mark.parametrize(
    ("text", "count", "result"),
    [
        (STRICT, 1, "[RESULTS]4[/RESULTS]"),
        (AFTER_CALLS, 2, "[RESULTS]4[/RESULTS]"),
        *((ALTERNATING, count, "[RESULTS]4[/RESULTS]") for count in (1, 4)),
        (NAMING, 2, "<|im_start|>functions.add to=assistant\n4<|im_end|>"),
    ],
)
def test_template_that_wants_calls_before_results_gets_them(text, count, result, tokenizer):
    """It raises without a call, drops the result, counts the roles, or repeats the call's name in
    the header."""
    template = made(tokenizer, text, schemas=[SCHEMA])
    template.check_turns()
    plain, called = turns(count, called=False), turns(count, called=True)
    ids = template.after(plain, 2 * count - 1, ended=True, called=called)
    assert tokenizer.decode(ids).strip().startswith(result)


def test_template_that_cannot_show_tools_or_their_results_is_refused(tokenizer):
    told = {"schemas": [SCHEMA], "instructions": "Call add."}
    for text, says in ((DROPPING, ""), (NO_TOOLS, " .*must alternate")):
        template = made(tokenizer, text, **told)
        with pytest.raises(ToolError, match=f"cannot show a tool's result{says}"):
            template.check_turns()
    asked = tokenizer.decode(made(tokenizer, DROPPING, **told).prompt([USER], 0))
    assert "user\nCall add.\n\nWhat is 2 + 2?" in asked  # it drops system messages too
    with pytest.raises(ToolError, match="^tools: the model's chat template refused them: "):
        made(tokenizer, "{{ 1 / 0 }}", schemas=[SCHEMA])
    with pytest.raises(ToolError, match="does not show tools.*multi_turn.format: hermes; set that"):
        made(tokenizer, None, schemas=[SCHEMA])


def test_template_that_ignores_tools_gets_them_in_the_system_message(tokenizer):
    template = made(tokenizer, None, schemas=[SCHEMA], instructions="You may call add.")
    system = {"role": "system", "content": "Be brief."}
    asked = tokenizer.decode(template.prompt([system, USER], 0))
    assert asked.startswith(f"{IM_START}system\nBe brief.\n\nYou may call add.{IM_END}")
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    assert '"arguments": {"a": 2}' in tokenizer.decode(template.prompt([USER, said, RESULT], 0))


# Transformers 5 does not show a null to a template.
DROPS_NULL = not version("transformers").startswith("4.")
# As in the templates of DeepSeek R1 and V3, whose first ones show a call without content only. With
# ~ in place of + Jinja writes a dict as Python does.
JOINING = """\
{%- for message in messages %}{%- if message['role'] == 'assistant' and CONDITION %}
{%- for call in message['tool_calls'] %}{{ '<CALL>' + call['type'] + '<SEP>' +
call['function']['name'] + ' ' + call['function']['arguments'] + '</CALL><|im_end|>' }}
{%- endfor %}
{%- else %}{{ '<' + message['role'] + '>' + message['content'] + '<|im_end|>' }}{%- endif %}
{%- endfor %}{% if tools %}{{ tools | tojson }}{% endif %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""


@pytest.mark.parametrize(
    "condition",
    ["'tool_calls' in message", *["message['content'] is none"] * (not DROPS_NULL)],
)
@pytest.mark.parametrize("plus", ["+", "~"])
def test_template_that_joins_arguments_gets_their_json_text(condition, plus, tokenizer):
    text = JOINING.replace("CONDITION", condition).replace("+", plus)
    template = made(tokenizer, text, schemas=[SCHEMA])
    template.check_turns()
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": {"a": "é"}}}
    said = {"role": "assistant", "content": "", "tool_calls": [call]}
    whole = tokenizer.decode(template.prompt([USER, said, RESULT], 0))
    assert "<CALL>function<SEP>add" in whole and '{"a": "é"}</CALL>' in whole


def said(role: str, content: str = "", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


ONE_SYSTEM = """{%- for message in messages %}{%- if message.role == "system" and loop.index0 %}
{{- raise_exception("the system message must be the first") }}{% elif message.role == "developer" %}
{{- raise_exception("unknown role") }}{% endif %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""
IN_PLACE_OF_SYSTEM = """{%- if messages[0].role in ["system", "developer"] %}<|im_start|>developer
{{ messages[0].content }}<|im_end|>
{% endif %}{%- for message in messages if message.role in ["user", "assistant"] %}<|im_start|>
{{- message.role }}
{{ message.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


@pytest.mark.parametrize("text", [QWEN3, ONE_SYSTEM, IN_PLACE_OF_SYSTEM])
def test_developer_speaks_as_the_system_where_the_template_does_not_show_the_role(text, tokenizer):
    """It drops the role, refuses it, or shows it only in place of a system message."""
    template = made(tokenizer, text)
    rules, system = said("developer", "Never say no."), said("system", "Be brief.")
    assert template.prompt([rules, USER], 0) == template.prompt(
        [{**rules, "role": "system"}, USER], 0
    )
    both = said("system", "Be brief.\n\nNever say no.")
    assert template.prompt([system, rules, USER], 0) == template.prompt([both, USER], 0)
    shows = made(tokenizer, None)
    assert f"{IM_START}developer\nNever" in tokenizer.decode(shows.prompt([rules, USER], 0))


CALL = {"id": "call00100", "function": {"name": "add", "arguments": {"a": 2}}}
LAST_ONLY = "{{ messages[-1].content }}"


@pytest.mark.parametrize(
    ("text", "messages", "place"),
    [
        (DROPPING, [said("system", "Be brief."), USER], 0),
        (IN_PLACE_OF_SYSTEM, [USER, said("assistant", tool_calls=[CALL]), RESULT], 2),
        (LAST_ONLY, [said("user", "Hi"), said("assistant", "Hello"), USER], 0),
    ],
)
def test_prompt_is_refused_whose_template_leaves_a_message_out(text, messages, place, tokenizer):
    template, role = made(tokenizer, text), messages[place]["role"]
    with pytest.raises(PromptError, match=rf"^prompt 3, message {place}: .*\(role {role}\)"):
        template.prompt(messages, 3)


SHOUTING = """{%- for message in messages %}{{ message.content | upper }}
{% endfor %}"""
AS_JSON = """{%- for message in messages %}{{ message | tojson }}
{% endfor %}"""


@pytest.mark.parametrize("text", [QWEN, QWEN3, SHOUTING, AS_JSON, None])
def test_texts_that_a_template_changes_are_no_texts_that_it_leaves_out(text, tokenizer):
    """It strips or escapes them, writes them in capitals, or hides earlier thoughts."""
    messages = [
        *(said("system", '  "Quoted"\n & <brief>\n'), USER),
        *(said("assistant", "<think>Add.</think>\n\n4 "), said("user", " More? ")),
        *(said("assistant", tool_calls=[CALL]), RESULT),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made(tokenizer, text).prompt(messages, 0)


def test_template_that_leaves_out_what_was_said_beside_a_call_gives_one_warning(tokenizer):
    template = made(tokenizer, STRICT, schemas=[SCHEMA])
    messages = [USER, said("assistant", "I add.", tool_calls=[CALL]), RESULT]
    with pytest.warns(UserWarning, match="^prompt 0, message 1: .* what the assistant said") as all:
        template.prompt(messages, 0)
        template.prompt([*messages, USER], 1)
    assert len(all) == 1
