"""Names the formats in which a model may write a tool call, so that a config is checked without
importing a parser.

`_inf.tools.readers` reads `OWN`, sglang 0.5.9's parsers read `SGLANG`; `ALIASES` are other names.
"""

from __future__ import annotations

from _inf.errors import did_you_mean, shown
from _inf.runtime.extras import without_verl

OWN = (
    *("hermes", "json", "xml", "function", "pythonic"),
    *("deepseekv32", "gemma4", "glm45", "mimo", "minimax-m2", "qwen3_coder", "step3"),
)
# SGLang's parsers, with the text that begins a call (in `lfm2` and `mistral`: one call or more).
SGLANG = {
    "deepseekv3": "<｜tool▁call▁begin｜>",
    "deepseekv31": "<｜tool▁call▁begin｜>",
    "gigachat3": "function call<|role_sep|>\n",
    "gpt-oss": "to=functions.",
    "interns1": "<|action_start|> <|plugin|>",
    "kimi_k2": "<|tool_call_begin|>",
    "lfm2": "<|tool_call_start|>",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS",
    "trinity": "<tool_call>",
}
ALIASES = {
    **dict.fromkeys(["qwen", "qwen25"], "hermes"),
    **dict.fromkeys(["glm", "glm47"], "glm45"),
    "llama3_json": "llama3",
    "step3p5": "qwen3_coder",
}
FORMATS = (*OWN, *SGLANG, *ALIASES)


def format_fault(name: object) -> str:
    """Return why calls in the format `name` cannot be read here; "" if they can."""
    unread = without_verl("rollout.multi_turn.format")
    formats = [each for each in FORMATS if not unread or ALIASES.get(each, each) in OWN]
    if name in formats:
        return ""
    listed = ", ".join(formats)
    if name in FORMATS:
        return f"{shown(name)}: {unread}. The formats that need no verl are {listed}."
    hint = did_you_mean(str(name), formats) or "."
    return f"{shown(name)} is not a tool call format{hint} The formats are {listed}."
