"""Calls SGLang's tool call parsers without losing a call.

Corrects sglang 0.5.9, `srt/function_call/`: a call of an unknown tool is dropped unless an
environment variable is set, and a call that cannot be read is dropped, sometimes with all others,
and only logged.
"""

from __future__ import annotations

from collections.abc import Sequence

from _inf.config.tool_formats import SGLANG
from _inf.errors import error_text
from _inf.tools.readers import call_of
from _inf.types import Tool, ToolCall


class _AnyName(dict[str, int]):
    """Replaces SGLang's indices of the known tools; contains every name."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> int:
        return -1


def detect(text: str, name: str, tools: Sequence[Tool]) -> tuple[str, list[ToolCall]]:
    """Return the text outside the calls, and the calls, whose positions are those of the whole
    text; if SGLang's parser `name` lost calls, one call with an error is added."""
    from sglang.srt.entrypoints.openai.protocol import Tool as SGLangTool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    whole = text.strip()
    if name == "gpt-oss":
        whole = _whole_harmony(whole)
    detector = FunctionCallParser.ToolCallParserEnum[name]()
    detector._get_tool_indices = lambda tools: _AnyName()
    if SGLANG[name] not in whole and not detector.has_tool_call(whole):
        return text, []
    begun = whole.count(SGLANG[name])
    if name == "llama3" and whole.startswith("{"):
        begun = int('"name"' in whole)  # otherwise the answer is plain JSON
    try:
        schemas = [SGLangTool.model_validate(tool.schema) for tool in tools]
        parsed = detector.detect_and_parse(whole, schemas)
    except Exception as failure:  # a model's text may make the parser raise anything
        return "", [ToolCall("", {}, text, 0, len(text), error_text(failure))]
    calls = [
        call_of((item.name or "").strip(), item.parameters or "{}", text, 0, len(text))
        for item in parsed.calls
    ]
    if name in ("qwen3_coder", "step3p5"):  # their parser accepts a value that was cut
        calls = calls[: whole.count("</function>")]
    if (lost := begun - len(calls)) > 0:
        error = f"{lost} of {begun} calls not in the format {name}"
        calls.append(ToolCall("", {}, text, 0, len(text), error))
    if not calls:
        return text, []
    if parsed.normal_text == whole:  # the calls with it
        return whole.partition(SGLANG[name])[0] if name == "gigachat3" else "", calls
    return parsed.normal_text or "", calls


def _whole_harmony(text: str) -> str:
    """Add the generation prompt's beginning, and a missing end token after a call."""
    text = f"<|start|>assistant{text}" if text.startswith("<|channel|>") else text
    last = text.rpartition("<|start|>")[2]
    return f"{text}<|call|>" if "to=functions." in last and "<|call|>" not in last else text
