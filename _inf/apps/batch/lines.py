"""Parses the lines of a batch file: three forms, each answered in the same form (docs/batch.md).
`generate` checks prompts and the ranges of values."""

from __future__ import annotations

import codecs
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

from _inf.apps.openai_format import (
    ChatRequest,
    Keywords,
    NamedTool,
    RequestBody,
    choices,
    json_object,
    message,
    read,
    usage,
)
from _inf.apps.rollouts.sources import answer_fields
from _inf.errors import ConfigError
from _inf.response.output import GenerationOutput, GenerationRow
from _inf.types import Tokenizer

MakeRow: TypeAlias = "Callable[[GenerationOutput], dict[str, Any]]"
COPIED_KEYS = ("id", "metadata", "custom_id")  # of any form: they are copied to the answer


@dataclasses.dataclass(frozen=True)
class Job:
    """A prompt with its own parameters, and `row`, which makes the output row of its answer.

    tool_choice: "required" or the tool that must be called; None if no call is asked for.
    """

    line: int
    prompt: Any
    row: MakeRow
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    copied: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tool_choice: str | NamedTool | None = None


@dataclasses.dataclass(frozen=True)
class BadLine:
    """A line that no engine could answer, and the reason."""

    line: int
    reason: str
    copied: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def error_row(job: Job | BadLine, code: str, reason: str) -> dict[str, Any]:
    """Return the row of a line without an answer, for every form: OpenAI's batch output line."""
    copied = {"id": f"batch-{job.line}", "custom_id": None, **job.copied}
    return {**copied, "response": None, "error": {"code": code, "message": reason}}


class _Line(RequestBody):
    id: Any = None
    metadata: Any = None
    custom_id: str | None = None


class _OneAnswer(_Line, Keywords):
    stream: Literal[False] | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None


class PromptLine(_OneAnswer):
    prompt: str

    def row(self, value: dict[str, Any], output: GenerationOutput) -> dict[str, Any]:
        """Return the line `value` with its answer."""
        [answer] = output
        calls = {name: value for name, value in message(answer).items() if name == "tool_calls"}
        return {**value, "completion": answer.completion, **calls, **_about(answer)}


class ConversationLine(_OneAnswer):
    messages: list[dict[str, Any]]
    metadata: dict[str, Any] | None = None
    conversation_id: Any = None

    def row(self, value: dict[str, Any], output: GenerationOutput) -> dict[str, Any]:
        """Return the line `value` with its answer."""
        [answer] = output
        chat = answer.messages or [*self.messages, message(answer)]
        return {**value, "messages": chat, "metadata": {**(self.metadata or {}), **_about(answer)}}


class BatchChatRequest(ChatRequest):
    """A request whose answer is a line."""

    stream: Literal[False] | None = None


class OpenAILine(_Line):
    custom_id: str
    method: Literal["POST"] | None = None
    url: Literal["/v1/chat/completions"] | None = None
    body: BatchChatRequest


def _about(row: GenerationRow) -> dict[str, Any]:
    return {"finish_reason": row.metadata["finish_reason"], "usage": usage([row.metadata], 1)}


def read_lines(source: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines, numbered from 1. Blank lines are skipped, but counted."""
    with open(source, "rb") as file:
        for line, text in enumerate(file, 1):
            if text.strip():
                yield line, text


def check_custom_ids(source: Path) -> None:
    """Raise `ConfigError` if two lines have the same custom_id, which identifies an answer."""
    first: dict[str, int] = {}
    for line, text in read_lines(source):
        name = parse(text, line).copied.get("custom_id")
        if isinstance(name, str) and (other := first.setdefault(name, line)) != line:
            raise ConfigError(
                f"{source}, line {line}: line {other} has the custom_id {name!r} too; it "
                "identifies the answer: give each line a different one."
            )


def parse(
    text: bytes,
    line: int,
    model: str = "",
    tokenizer: Tokenizer = None,
    *,
    rollouts: bool = False,
) -> Job | BadLine:
    """Parse one line. `model`: the model's name for OpenAI's form. `tokenizer`: the engine's. Both
    are needed only to write an answer. `rollouts`: write it in the form of docs/rollouts.md."""
    copied: dict[str, Any] = {}
    try:
        value = json_object(text.removeprefix(codecs.BOM_UTF8))
        copied = {name: value[name] for name in COPIED_KEYS if name in value}
        job = dataclasses.replace(_job(value, line, model, tokenizer), copied=copied)
        return _as_rollout(job, tokenizer) if rollouts else job
    except ConfigError as failure:
        return BadLine(line, str(failure), copied)


def _as_rollout(job: Job, tokenizer: Tokenizer) -> Job:
    """The same job, whose answer's row is a rollout."""
    if job.params.get("n", 1) != 1:
        raise ConfigError.of("body.n", "with --rollouts a line has one answer")
    name, prompt = job.copied.get("custom_id"), job.prompt
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt

    def row(output: GenerationOutput) -> dict[str, Any]:
        [answer] = output
        return {
            **job.copied,
            "row_id": name if isinstance(name, str) else str(job.line),
            "messages": [*asked, message(answer)],
            **answer_fields(answer, tokenizer),
        }

    return dataclasses.replace(job, row=row)


def _job(value: dict[str, Any], line: int, model: str, tokenizer: Tokenizer) -> Job:
    match [name for name in ("prompt", "messages", "body") if value.get(name) is not None]:
        case ["prompt"]:
            if isinstance(value["prompt"], list) and any(
                isinstance(each, dict) for each in value["prompt"]
            ):
                raise ConfigError.of("prompt", "it is a list of messages; name it 'messages'")
            prompt = read(PromptLine, value)
            return _asking(prompt, line, prompt.prompt, partial(prompt.row, value))
        case ["messages"]:
            chat = read(ConversationLine, value)
            return _asking(chat, line, chat.messages, partial(chat.row, value))
        case ["body"]:
            return _openai(value, line, model, tokenizer)
        case forms:
            keys = " and ".join(forms) or "none of prompt, messages and body"
            raise ConfigError(
                f"it has {keys}; the forms of a line are "
                '{"prompt": ...}, {"messages": ...} and {"custom_id": ..., "body": ...}'
            )


def _asking(request: Keywords, line: int, prompt: Any, row: MakeRow) -> Job:
    """The job of a line with the keywords of `request`."""
    choice = request.tool_choice
    asked = None if choice in ("auto", "none") else choice
    return Job(line, prompt, row, request.keywords(), tool_choice=asked)


def _openai(value: dict[str, Any], line: int, model: str, tokenizer: Tokenizer) -> Job:
    form = read(OpenAILine, value)
    if form.body.logprobs and model and tokenizer is None:
        said = "the server takes and gives text; set tokenizer_path"
        raise ConfigError.of("body.logprobs", said)

    def row(output: GenerationOutput) -> dict[str, Any]:
        content = {
            "id": f"chatcmpl-{line}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": choices(output, tokenizer, likeliest=form.body.likeliest),
            "usage": usage(output.metadata, len(output)),
        }
        response = {"status_code": 200, "request_id": f"req-{line}", "body": content}
        copied = {name: value[name] for name in COPIED_KEYS if name in value}
        return {"id": f"batch-{line}", **copied, "response": response, "error": None}

    return _asking(form.body, line, form.body.messages, row)
