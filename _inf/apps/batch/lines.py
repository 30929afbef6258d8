"""Parses the lines of a batch file: three forms, each answered in the same form (docs/batch.md).
`generate` checks prompts and the ranges of values."""

from __future__ import annotations

import codecs
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from _inf.apps.json_object import json_object
from _inf.apps.openai_answers import assistant, of_parts, token_logprobs, usage
from _inf.apps.openai_requests import ChatRequest, Keywords, NamedTool, RequestBody, read
from _inf.apps.rollouts.sources import answer_fields
from _inf.errors import ConfigError
from _inf.parts.kept import kept_messages
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.response.token_texts import TokenTexts
from _inf.types import JSON, Tokenizer

# Of the answer of an agent loop, in every form.
OF_LOOPS = ("agent_loop", "num_turns", "unsampled_ids", "reward_scores", "extra_fields")
COPIED_KEYS = ("id", "metadata", "custom_id")  # of any form: they are copied to the answer


@dataclasses.dataclass(frozen=True)
class Job:
    """A prompt with its own parameters, and `row`, which makes the output row of its answer.
    tool_choice: "required" or the tool that must be called, or "none" of those shown; else None."""

    line: int
    prompt: object
    row: Callable[[GenerationOutput], dict[str, object]]
    params: Mapping[str, object] = dataclasses.field(default_factory=dict)
    copied: Mapping[str, object] = dataclasses.field(default_factory=dict)
    tool_choice: str | NamedTool | None = None


@dataclasses.dataclass(frozen=True)
class BadLine:
    """A line that no engine could answer, and the reason."""

    line: int
    reason: str
    copied: Mapping[str, object] = dataclasses.field(default_factory=dict)


def error_row(job: Job | BadLine, code: str, reason: str) -> dict[str, object]:
    """Return the row of a line without an answer, for every form: OpenAI's batch output line."""
    copied = {"id": f"batch-{job.line}", "custom_id": None, **job.copied}
    return {**copied, "response": None, "error": {"code": code, "message": reason}}


@dataclasses.dataclass(frozen=True)
class Answering:
    """What a row of the output needs in addition to the answer: its line and the model."""

    line: int
    value: dict[str, object]
    copied: dict[str, object]
    model: str
    tokenizer: Tokenizer


ALSO = ("tool_calls", "reasoning")  # what a message may have in addition to its content


class _Line(RequestBody):
    id: object = None
    metadata: object = None
    custom_id: str | None = None


class _OneAnswer(_Line, Keywords):
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None


class PromptLine(_OneAnswer):
    prompt: str

    def row(self, source: Answering, output: GenerationOutput) -> dict[str, object]:
        [answer] = output
        also = {name: value for name, value in message(answer).items() if name in ALSO}
        return {**source.value, "completion": answer.completion, **also, **_metadata(answer)}


class ConversationLine(_OneAnswer):
    messages: list[dict[str, object]]
    metadata: dict[str, object] | None = None
    conversation_id: object = None

    def row(self, source: Answering, output: GenerationOutput) -> dict[str, object]:
        [answer] = output
        chat = kept_messages(answer.messages or [*self.messages, message(answer)])
        metadata = {**(self.metadata or {}), **_metadata(answer)}
        return {**source.value, "messages": chat, "metadata": metadata}


class OpenAILine(_Line):
    custom_id: str
    method: Literal["POST"] | None = None
    url: Literal["/v1/chat/completions"] | None = None
    body: ChatRequest

    def row(self, source: Answering, output: GenerationOutput) -> dict[str, object]:
        likeliest = self.body.likeliest
        pairs = zip(choices(output, source.tokenizer, likeliest=likeliest), output, strict=True)
        content = {
            "id": f"chatcmpl-{source.line}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": source.model,
            "choices": [choice | of_parts(row) | _of_loop(row) for choice, row in pairs],
            "usage": usage(output.rows, len(output)),
        }
        response = {"status_code": 200, "request_id": f"req-{source.line}", "body": content}
        return {"id": f"batch-{source.line}", **source.copied, "response": response, "error": None}


def message(row: GenerationRow) -> dict[str, object]:
    """Return a row's message, with the tool calls that the caller must run."""
    calls = row.tool_calls or []
    content = row.messages[-1]["content"] if calls and row.messages else row.completion
    ids = [f"call_{index}" for index in range(len(calls))]
    return assistant(content, calls, ids, row.reasoning or "")


def choices(
    output: GenerationOutput, tokenizer: Tokenizer, *, likeliest: int | None
) -> list[dict[str, object]]:
    """Return one choice per row; `likeliest` as in `ChatRequest`."""
    return [
        {
            "index": index,
            "message": message(row),
            "finish_reason": row.finish_reason,
            "logprobs": token_logprobs(row, TokenTexts(tokenizer), likeliest),
        }
        for index, row in enumerate(output)
    ]


def _metadata(row: GenerationRow) -> dict[str, object]:
    return {"finish_reason": row.finish_reason, "usage": usage([row], 1), **_of_loop(row)}


def _of_loop(row: GenerationRow) -> dict[str, object]:
    """What an agent loop says of its answer."""
    if row.transcript is None or row.transcript.agent_loop is None:
        return {}
    fields = row.to_dict()
    return {name: fields[name] for name in OF_LOOPS if name in fields}


def unsampled_ids(row: Mapping[str, Any]) -> int:
    """How many ids of an output row's agent loop have a wrong mask, in any form."""
    body = (row.get("response") or {}).get("body") or {}
    parts = [row, row.get("metadata"), *(body.get("choices") or ())]
    counts = [part.get("unsampled_ids") for part in parts if isinstance(part, Mapping)]
    return sum(count for count in counts if isinstance(count, int))


def read_lines(source: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines, numbered from 1. Blank lines are skipped, but counted."""
    with open(source, "rb") as file:
        for line, text in enumerate(file, 1):
            if text.strip():
                yield line, text


def check_custom_ids(source: Path, shown: Path) -> None:
    """Raise `ConfigError` if two lines have the same custom_id, which identifies an answer. shown:
    how the message names the file."""
    first: dict[str, int] = {}
    for line, text in read_lines(source):
        name = parse(text, line).copied.get("custom_id")
        if isinstance(name, str) and (other := first.setdefault(name, line)) != line:
            raise ConfigError(
                f"{shown}, line {line}: line {other} also has the custom_id {name!r}, which "
                "identifies the answer; give each line a different one."
            )


def parse(
    text: bytes, line: int, model: str = "", tokenizer: Tokenizer = None, *, rollouts: bool = False
) -> Job | BadLine:
    """Parse one line. `model`: the model's name for OpenAI's form. `tokenizer`: the engine's. Both
    are needed only to write an answer. `rollouts`: write it in the form of docs/rollouts.md."""
    copied: dict[str, object] = {}
    try:
        value = json_object(text.removeprefix(codecs.BOM_UTF8))
        copied = {name: value[name] for name in COPIED_KEYS if name in value}
        return _job(Answering(line, value, copied, model, tokenizer), rollouts)
    except ConfigError as failure:
        return BadLine(line, str(failure), copied)


def _job(source: Answering, rollouts: bool) -> Job:
    form: PromptLine | ConversationLine | OpenAILine
    keys: Keywords
    value = source.value
    match [name for name in ("prompt", "messages", "body") if value.get(name) is not None]:
        case ["prompt"]:
            given = value["prompt"]
            if isinstance(given, list) and any(isinstance(item, dict) for item in given):
                raise ConfigError.of("prompt", "it is a list of messages; name it 'messages'")
            form = keys = read(PromptLine, value)
            prompt: object = form.prompt
        case ["messages"]:
            form = keys = read(ConversationLine, value)
            prompt = form.messages
        case ["body"]:
            form = read(OpenAILine, value)
            keys, prompt = form.body, form.body.messages
            if keys.logprobs and source.model and source.tokenizer is None:
                reason = "the server works with text; set tokenizer_path"
                raise ConfigError.of("body.logprobs", reason)
            if rollouts and keys.keywords().get("n", 1) != 1:
                raise ConfigError.of("body.n", "with --rollouts a line has one answer")
        case forms:
            named = " and ".join(forms) or "none of prompt, messages and body"
            raise ConfigError(
                f"it has {named}; the forms of a line are "
                '{"prompt": ...}, {"messages": ...} and {"custom_id": ..., "body": ...}'
            )
    row = partial(_rollout, source, prompt) if rollouts else partial(form.row, source)
    params = keys.keywords()
    plain = ("auto",) if params.get("tools") else ("auto", "none")
    choice = None if keys.tool_choice in plain else keys.tool_choice
    return Job(source.line, prompt, row, params, source.copied, choice)


def _rollout(source: Answering, prompt: Any, output: GenerationOutput) -> JSON:
    [answer] = output
    name = source.copied.get("custom_id")
    one = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    asked: Any = kept_messages(one)
    talk: JSON = {"messages": [*asked, message(answer)]}
    if answer.transcript is not None and answer.transcript.agent_loop is not None:
        talk = {"prompt": asked}  # a loop does not say its turns
    return {
        **source.copied,
        "row_id": name if isinstance(name, str) else str(source.line),
        **talk,
        **answer_fields(answer, source.tokenizer),
    }
