"""The lines of a batch file: three forms in, each answered in its own (docs/batch.md).

In: one line's bytes. Out: a `Job`, or a `Fault` that says what is wrong with the line. Knows
nothing of files and engines; prompts and the values of parameters are `generate`'s to check.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from _inf.errors import did_you_mean, shown
from _inf.output import GenerationRow
from _inf.record import Fault, Job

# OpenAI's names, and what SGLang's and vLLM's servers take beside them.
PARAMS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "max_tokens", "stop")},
    **{name: name for name in ("min_tokens", "stop_token_ids", "seed", "ignore_eos", "regex")},
    **{name: name for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")},
    **{name: name for name in ("skip_special_tokens", "chat_template_kwargs")},
    "max_completion_tokens": "max_tokens",
}
LABELS = ("model", "user", "metadata", "store", "service_tier")  # they change no answer
NEUTRAL = {"n": 1, "stream": False, "logprobs": False}
ENVELOPE = ("custom_id", "method", "url", "body")
CHAT = "/v1/chat/completions"
ADDED = ("completion", "tool_calls", "finish_reason", "usage")
FORMS = '{"prompt": ...}, {"messages": ...} and {"custom_id": ..., "body": ...}'


class _Wrong(ValueError):
    """What is wrong with a line."""


def parse(text: bytes, line: int, model: str) -> Job | Fault:
    """`model`: what OpenAI's form calls the model that answers."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if not isinstance(value, dict):
            raise _Wrong(f"it is not a JSON object: {shown(value)}")
        return _job(value, line, model)
    except _Wrong as failure:
        return Fault(line, str(failure))
    except (ValueError, RecursionError) as failure:
        return Fault(line, f"it is not JSON: {failure}")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ValueError(f"{digits} is too large a number")
    return number


def _job(value: dict[str, Any], line: int, model: str) -> Job:
    forms = [name for name in ("prompt", "messages", "body") if name in value]
    if len(forms) != 1:
        found = " and ".join(forms) or "none of prompt, messages and body"
        raise _Wrong(f"it has {found}; the forms of a line are {FORMS}")
    if "body" in value:
        return _openai(value, line, model)
    return _conversation(value, line) if "messages" in value else _prompt(value, line)


def _prompt(value: dict[str, Any], line: int) -> Job:
    if not isinstance(value["prompt"], str):
        raise _Wrong(f"prompt: {shown(value['prompt'])} is not text")
    for name in ADDED:
        if name in value:
            raise _Wrong(f"{name}: the answer goes there; rename the line's own")

    def row(answer: GenerationRow) -> dict[str, Any]:
        said = _said(answer)
        calls = {name: said[name] for name in ("tool_calls",) if name in said}
        return {**value, "completion": said["content"], **calls, **_about(answer)}

    return Job(line, value["prompt"], row)


def _conversation(value: dict[str, Any], line: int) -> Job:
    messages = _messages(value)
    metadata = value.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise _Wrong(f"metadata: {shown(metadata)} is not an object")

    def row(answer: GenerationRow) -> dict[str, Any]:
        said = answer.messages or [*messages, _said(answer)]
        return {**value, "messages": said, "metadata": {**metadata, **_about(answer)}}

    return Job(line, messages, row)


def _openai(value: dict[str, Any], line: int, model: str) -> Job:
    _known(value, ENVELOPE, "")
    name, body = value.get("custom_id"), value["body"]
    if not isinstance(name, str):
        raise _Wrong(f"custom_id: {shown(name)} is not text")
    if value.get("method", "POST") != "POST" or value.get("url", CHAT) != CHAT:
        raise _Wrong(f"only POST {CHAT} is answered")
    if not isinstance(body, dict):
        raise _Wrong(f"body: {shown(body)} is not an object")
    params = _params(body)

    def row(answer: GenerationRow) -> dict[str, Any]:
        about = _about(answer)
        finish = about["finish_reason"]
        choice = {"index": 0, "message": _said(answer), "finish_reason": finish}
        content = {
            "id": f"chatcmpl-{line}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [{**choice, "logprobs": None}],
            "usage": about["usage"],
        }
        response = {"status_code": 200, "request_id": f"req-{line}", "body": content}
        return {"id": f"batch-{line}", "custom_id": name, "response": response, "error": None}

    return Job(line, _messages(body), row, params)


def _params(body: Mapping[str, Any]) -> dict[str, Any]:
    _known(body, ("messages", "response_format", *PARAMS, *LABELS, *NEUTRAL), "body.")
    for name, only in NEUTRAL.items():
        if body.get(name, only) not in (only, None):
            raise _Wrong(f"body.{name}: {shown(body[name])} is not offered here; only {only}")
    params: dict[str, Any] = {}
    for name, value in body.items():
        if name not in PARAMS or value is None:
            continue
        if isinstance(value, list) and not name.startswith("stop"):
            raise _Wrong(f"body.{name}: {shown(value)} is a list")
        if PARAMS[name] in params:
            raise _Wrong(f"body.{name}: max_tokens is there too; drop one of the two")
        params[PARAMS[name]] = value
    return {**params, **_format(body.get("response_format"))}


def _format(wanted: Any) -> dict[str, Any]:
    match wanted:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"json_schema": schema}
    raise _Wrong(
        f"body.response_format: {shown(wanted)} is neither text nor "
        '{"type": "json_schema", "json_schema": {"schema": ...}}'
    )


def _messages(value: Mapping[str, Any]) -> list[Any]:
    messages = value.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise _Wrong(f"messages: {shown(messages)} is not a list of messages")
    return messages


def _known(value: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    for name in value:
        if name not in names:
            raise _Wrong(f"{where}{name}: unknown{did_you_mean(name, names)}")


def _said(answer: GenerationRow) -> dict[str, Any]:
    """The assistant's message, with the tool calls that are left to the caller."""
    said: dict[str, Any] = {"role": "assistant", "content": answer.completion}
    calls = [
        {"name": call.name, "arguments": json.dumps(call.arguments)}
        for call in answer.tool_calls or ()
    ]
    if calls:
        said["tool_calls"] = [
            {"id": f"call_{place}", "type": "function", "function": call}
            for place, call in enumerate(calls)
        ]
    return said


def _about(answer: GenerationRow) -> dict[str, Any]:
    prompt, completion = (answer.metadata[f"{name}_tokens"] for name in ("prompt", "completion"))
    return {
        "finish_reason": answer.metadata["finish_reason"],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": answer.metadata["cached_tokens"]},
        },
    }
