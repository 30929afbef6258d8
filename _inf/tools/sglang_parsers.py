"""SGLang's tool call parsers, with no call lost.

In: an answer, a parser's name, tool schemas. Out: `Detected`. Corrects sglang 0.5.9,
`srt/function_call/`: a call of an unknown tool is dropped unless an environment variable of the
whole process says otherwise, and one that cannot be read is dropped or takes the others with it,
with nothing said but in a log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What begins each call (`lfm2`, `mistral`: one or more), so that a lost one is noticed.
OPENERS = {
    "deepseekv3": "<｜tool▁call▁begin｜>",
    "deepseekv31": "<｜tool▁call▁begin｜>",
    "deepseekv32": "<｜DSML｜invoke",
    "gigachat3": "function call<|role_sep|>\n",
    "glm": "<tool_call>",
    "glm45": "<tool_call>",
    "glm47": "<tool_call>",
    "gpt-oss": "to=functions.",
    "interns1": "<|action_start|> <|plugin|>",
    "kimi_k2": "<|tool_call_begin|>",
    "lfm2": "<|tool_call_start|>",
    "llama3": "<|python_tag|>",
    "mimo": "<tool_call>",
    "minimax-m2": '<invoke name="',
    "mistral": "[TOOL_CALLS",
    "qwen3_coder": "<function=",
    "step3": "<｜tool_call_begin｜>",
    "step3p5": "<function=",
    "trinity": "<tool_call>",
}
CLOSERS = {"qwen3_coder": "</function>", "step3p5": "</function>"}  # it reads half a value as one


@dataclass(frozen=True)
class Detected:
    """content: the text outside the calls, as upstream has it. calls: name and arguments, JSON as
    the parser wrote it. failure: why there are fewer than the text begins, if there are."""

    content: str
    calls: list[tuple[str, str]]
    failure: str | None = None


class _AnyName(dict[str, int]):
    """In place of the indices of the known tools: knows every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return -1


def detect(text: str, name: str, schemas: Sequence[Mapping[str, Any]]) -> Detected:
    """Parse with SGLang's parser `name`."""
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    whole = text.strip()
    if name == "gpt-oss":
        whole = _harmony(whole)
    detector = FunctionCallParser.ToolCallParserEnum[name]()
    detector._get_tool_indices = lambda tools: _AnyName()
    if OPENERS[name] not in whole and not detector.has_tool_call(whole):
        return Detected(text, [])
    begun = whole.count(OPENERS[name])
    if name == "llama3" and whole.startswith("{"):
        begun = int('"name"' in whole)  # or else an answer in JSON, and no call
    try:
        parsed = detector.detect_and_parse(whole, [Tool.model_validate(each) for each in schemas])
    except Exception as failure:  # what a model wrote may raise anything in there
        return Detected("", [], f"{type(failure).__name__}: {failure}")
    calls = [((call.name or "").strip(), call.parameters) for call in parsed.calls]
    if name in CLOSERS:
        calls = calls[: whole.count(CLOSERS[name])]
    outside = "" if parsed.normal_text == whole else parsed.normal_text or ""
    if len(calls) >= begun:
        return Detected(outside if calls else text, calls)
    lost = "it is not" if begun == 1 else f"{begun - len(calls)} of {begun} calls are not"
    return Detected(outside, calls, f"{lost} in the format {name}")


def _harmony(text: str) -> str:
    """With what the generation prompt had written before it, and the end token after a call."""
    text = f"<|start|>assistant{text}" if text.startswith("<|channel|>") else text
    last = text.rpartition("<|start|>")[2]
    return f"{text}<|call|>" if "to=functions." in last and "<|call|>" not in last else text
