"""The lines of a batch file: three forms in, each answered in its own (docs/batch.md).

In: one line's bytes. Out: a `Job`, or a `Fault` that says what is wrong with the line. Knows
nothing of files and engines; prompts and the values of parameters are `generate`'s to check.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from _inf.apps.batch.run_files import Fault, Job
from _inf.apps.openai_format import LABELS, BadRequest, choices, keywords, message, usage
from _inf.errors import did_you_mean, shown
from _inf.response.output import GenerationOutput

ALONG = ("id", "metadata", "custom_id")  # of any form: they come back with the answer
NAMES = ("prompt", "messages", "body")  # of the forms; all but one of them absent or null
ENVELOPE = (*ALONG, *NAMES, "method", "url")
CHAT = "/v1/chat/completions"
MOST_TEMPERATURE = 2  # OpenAI's bound
ADDED = ("completion", "tool_calls", "finish_reason", "usage")
FORMS = '{"prompt": ...}, {"messages": ...} and {"custom_id": ..., "body": ...}'


def parse(text: bytes, line: int, model: str, tokenizer: Any = None) -> Job | Fault:
    """`model`: what OpenAI's form calls the model that answers. `tokenizer`: the engine's; it is
    needed when an answer comes."""
    name = None
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_finite)
        if not isinstance(value, dict):
            raise BadRequest(f"it is not a JSON object: {shown(value)}")
        if isinstance(found := value.get("custom_id"), str):
            name = found
        return dataclasses.replace(_job(value, line, model, tokenizer), custom_id=name)
    except BadRequest as failure:
        return Fault(line, str(failure), name)
    except (ValueError, RecursionError) as failure:
        return Fault(line, f"it is not JSON: {failure}", name)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    if math.isinf(number := float(digits)):
        raise ValueError(f"{digits} is too large a number")
    return number


def _job(value: dict[str, Any], line: int, model: str, tokenizer: Any) -> Job:
    forms = [name for name in NAMES if value.get(name) is not None]
    if len(forms) != 1:
        found = " and ".join(forms) or "none of prompt, messages and body"
        raise BadRequest(f"it has {found}; the forms of a line are {FORMS}")
    if not isinstance(name := value.get("custom_id"), str | None):
        raise BadRequest(f"custom_id: {shown(name)} is not text")
    if forms == ["body"]:
        return _openai(value, line, model, tokenizer)
    return _conversation(value, line) if forms == ["messages"] else _prompt(value, line)


def _prompt(value: dict[str, Any], line: int) -> Job:
    if not isinstance(value["prompt"], str):
        raise BadRequest(f"prompt: {shown(value['prompt'])} is not text")
    for name in ADDED:
        if name in value:
            raise BadRequest(f"{name}: the answer goes there; rename the line's own")
    params = _for_one_answer(value)

    def row(output: GenerationOutput) -> dict[str, Any]:
        [answer] = output
        calls = {name: said for name, said in message(answer).items() if name == "tool_calls"}
        return {**value, "completion": answer.completion, **calls, **_about(output)}

    return Job(line, value["prompt"], row, params)


def _conversation(value: dict[str, Any], line: int) -> Job:
    messages = _messages(value)
    metadata = value.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise BadRequest(f"metadata: {shown(metadata)} is not an object")
    params = _for_one_answer(value, "conversation_id")

    def row(output: GenerationOutput) -> dict[str, Any]:
        [answer] = output
        said = answer.messages or [*messages, message(answer)]
        return {**value, "messages": said, "metadata": {**metadata, **_about(output)}}

    return Job(line, messages, row, params)


def _for_one_answer(value: Mapping[str, Any], *own: str) -> dict[str, Any]:
    """Of a line whose answer is one text."""
    params = keywords(value, (*NAMES, *own, *ALONG))
    for name, neutral in (("n", 1), ("logprobs", False)):
        if value.get(name, neutral) not in (neutral, None):
            raise BadRequest(
                f"{name}: {shown(value[name])} has a place in the answer in OpenAI's form only"
            )
    return params


def _about(output: GenerationOutput) -> dict[str, Any]:
    return {"finish_reason": output.metadata[0]["finish_reason"], "usage": usage(output)}


def _openai(value: dict[str, Any], line: int, model: str, tokenizer: Any) -> Job:
    for name in value:
        if name not in ENVELOPE:
            raise BadRequest(f"{name}: unknown{did_you_mean(name, ENVELOPE)}")
    body = value["body"]
    if value.get("custom_id") is None:
        raise BadRequest("custom_id: it is missing, and the answer is known by it")
    if value.get("method", "POST") != "POST" or value.get("url", CHAT) != CHAT:
        raise BadRequest(f"only POST {CHAT} is answered")
    if not isinstance(body, dict):
        raise BadRequest(f"body: {shown(body)} is not an object")
    params = _body_params(body)
    likeliest = params.get("logprobs", 0) if body.get("logprobs") else None

    def row(output: GenerationOutput) -> dict[str, Any]:
        content = {
            "id": f"chatcmpl-{line}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": choices(output, tokenizer, likeliest=likeliest),
            "usage": usage(output),
        }
        response = {"status_code": 200, "request_id": f"req-{line}", "body": content}
        along = {name: value[name] for name in ALONG if name in value}
        return {"id": f"batch-{line}", **along, "response": response, "error": None}

    return Job(line, _messages(body), row, params)


def _body_params(body: Mapping[str, Any]) -> dict[str, Any]:
    try:
        params = keywords(body, ("messages", *LABELS))
    except BadRequest as failure:
        raise BadRequest(f"body.{failure}") from None
    heat = params.get("temperature")
    if isinstance(heat, int | float) and heat > MOST_TEMPERATURE:
        raise BadRequest(f"body.temperature: {heat} is above {MOST_TEMPERATURE}, OpenAI's bound")
    return params


def _messages(value: Mapping[str, Any]) -> list[Any]:
    messages = value.get("messages")
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise BadRequest(f"messages: {shown(messages)} is not a list of messages")
    return messages
