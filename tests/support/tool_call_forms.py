"""One call in every format, as models write it."""

from __future__ import annotations

from _inf.config.tool_formats import ALIASES

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
    "glm": _GLM,
    "glm45": _GLM,
    "glm47": "<tool_call>NAME<arg_key>ARG</arg_key><arg_value>VALUE</arg_value></tool_call>",
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


def written_call(format: str, name: str = "search", value: str = "Python") -> str:
    """One call of the tool `name` with the argument `query`."""
    form = FORMS[ALIASES.get(format, format)].replace("NAME", name)
    form = form.replace("ARGUMENTS", '{"ARG": "VALUE"}')
    return form.replace("ARG", "query").replace("VALUE", value)
