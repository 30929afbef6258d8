"""One call in every format, as models write it, and the format of each family of models."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.sax.saxutils import escape

from _inf.config.tool_formats import ALIASES, OWN, SGLANG
from _inf.tools.parsing import parse

_HERMES = '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>'
_GLM = "<tool_call>NAME\n<arg_key>ARG</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>"
_QWEN_CODER = (
    "<tool_call>\n<function=NAME>\n<parameter=ARG>\nVALUE\n</parameter>\n</function>\n</tool_call>"
)
_INVOKE = "<invoke>\n<tool_name>NAME</tool_name>\n<parameters>\n<ARG>VALUE</ARG>\n</parameters>\n"

FORMS = {
    "hermes": _HERMES,
    "json": '{"tool": "NAME", "arguments": ARGUMENTS}',
    "xml": f"<function_calls>\n{_INVOKE}</invoke>\n</function_calls>",
    "function": 'NAME(ARG="VALUE")',
    "pythonic": '[NAME(ARG="VALUE")]',
    "gemma4": '<|tool_call>call:NAME{ARG:<|"|>VALUE<|"|>}<tool_call|>',
    "deepseekv3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n"
        "```json\nARGUMENTS\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseekv31": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "deepseekv32": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="NAME">\n<｜DSML｜parameter name="ARG" '
        'string="true">VALUE</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    ),
    "gigachat3": 'function call<|role_sep|>\n{"name": "NAME", "arguments": ARGUMENTS}',
    "glm45": _GLM,
    "gpt-oss": (
        "<|start|>assistant<|channel|>commentary to=functions.NAME "
        "<|constrain|>json<|message|>ARGUMENTS<|call|>"
    ),
    "interns1": (
        '<|action_start|> <|plugin|>\n{"name": "NAME", "parameters": ARGUMENTS}<|action_end|>'
    ),
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0"
        "<|tool_call_argument_begin|>ARGUMENTS<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "lfm2": '<|tool_call_start|>[NAME(ARG="VALUE")]<|tool_call_end|>',
    "llama3": '<|python_tag|>{"name": "NAME", "parameters": ARGUMENTS}',
    "mimo": (
        "<tool_call>\n<function=NAME>\n<parameter=ARG>VALUE</parameter>\n</function>\n</tool_call>"
    ),
    "minimax-m2": (
        '<minimax:tool_call>\n<invoke name="NAME">\n<parameter name="ARG">VALUE</parameter>\n'
        "</invoke>\n</minimax:tool_call>"
    ),
    "mistral": '[TOOL_CALLS] [{"name": "NAME", "arguments": ARGUMENTS}]',
    "qwen3_coder": _QWEN_CODER,
    "step3": (
        "<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜>"
        '<steptml:invoke name="NAME">\n'
        '<steptml:parameter name="ARG">VALUE</steptml:parameter>\n</steptml:invoke>'
        "<｜tool_call_end｜>\n<｜tool_calls_end｜>"
    ),
    "step3p5": _QWEN_CODER,
    "trinity": _HERMES,
}


# A call as the family's chat template writes it into the conversation, or as vLLM's parser for the
# family reads it: docs/tools.md says of which families the template was read.
_COMPACT_MISTRAL = "[TOOL_CALLS]NAME[ARGS]ARGUMENTS"
FAMILIES = {
    **dict.fromkeys(["Qwen3", "Qwen3-Next", "EXAONE 4", "Falcon-H1", "SmolLM3"], _HERMES),
    "Granite 4": _HERMES,
    "Qwen3-Coder, Qwen3.5": FORMS["qwen3_coder"],
    "Gemma 4": FORMS["gemma4"],
    "GLM-4.5, GLM-4.6": _GLM,
    "GLM-4.7": "<tool_call>NAME<arg_key>ARG</arg_key><arg_value>VALUE</arg_value></tool_call>",
    "MiniMax M2": FORMS["minimax-m2"],
    "LFM2.5": FORMS["lfm2"],
    "OLMo 3": '<function_calls>\nNAME(ARG="VALUE")\n</function_calls>',
    "Hunyuan A13B": '<tool_calls>\n[{"name": "NAME", "arguments": ARGUMENTS}]\n</tool_calls>',
    "Ministral 3": _COMPACT_MISTRAL,
    "DeepSeek V3.1": FORMS["deepseekv31"],
    "DeepSeek V3.2": FORMS["deepseekv32"],
    "Kimi K2": FORMS["kimi_k2"],
}
OF_SGLANG = {form: name for name, form in FORMS.items() if name in SGLANG} | {
    _COMPACT_MISTRAL: "mistral"
}


def reader_of(family: str) -> str:
    """The format that reads the family's calls, whole and without leaving anything of them in the
    answer; one of our own readers, or "" if only SGLang's does."""
    text = _filled(FAMILIES[family], "search", "Python")
    for format in sorted(OWN, key=lambda each: each == "function"):  # it reads the most
        parsed = parse(f"I look.\n{text}", format, [])
        read = [(call.name, call.arguments, call.error) for call in parsed.calls]
        if read == [("search", {"query": "Python"}, None)] and parsed.content == "I look.":
            return format
    return ""


def family_table() -> str:
    """Which format reads each family's calls."""
    lines = ["| family | a call | `multi_turn.format` |", "|---|---|---|"]
    for family, form in FAMILIES.items():
        call = _filled(form, "f", "1").replace("\n", " ")
        own = f"`{reader_of(family)}`" if reader_of(family) else ""
        format = own or f"`{OF_SGLANG[form]}`, with the extra `verl` only"
        lines.append(f"| {family} | `` {call.replace('|', chr(92) + '|')} `` | {format} |")
    return "\n".join(lines)


def written_call(format: str, name: str = "search", value: str = "Python") -> str:
    """One call of the tool `name` with the argument `query`."""
    return _filled(FORMS[ALIASES.get(format, format)], name, value)


def written_value(format: str, value: Any) -> str:
    """One call of the tool `search` with the argument `query`, as a model writes it."""
    form = FORMS[ALIASES.get(format, format)].replace("NAME", "search")
    as_json = json.dumps(value, ensure_ascii=False)
    if "ARGUMENTS" in form:
        return form.replace("ARGUMENTS", f'{{"query": {as_json}}}')
    form = re.sub(r"\bARG\b", "query", form)
    if format == "gemma4":
        return form.replace('<|"|>VALUE<|"|>', _in_gemma4(value))
    if '"VALUE"' in form:
        return form.replace('"VALUE"', repr(value))
    if not isinstance(value, str):
        form = form.replace('string="true"', 'string="false"')
    text = value if isinstance(value, str) else as_json
    return form.replace("VALUE", escape(text) if format in ("xml", "mimo") else text)


def _in_gemma4(value: Any) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, list):
        return f"[{','.join(map(_in_gemma4, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_in_gemma4(each)}' for key, each in value.items())}}}"
    return json.dumps(value)


def _filled(form: str, name: str, value: str) -> str:
    form = form.replace("NAME", name).replace("ARGUMENTS", '{"ARG": "VALUE"}')
    return re.sub(r"\bARG\b", "query", form).replace("VALUE", value)
