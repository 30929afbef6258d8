"""Sessions: conversations over HTTP whose sampled ids are kept.

A request's prompt begins with the recorded ids wherever it continues an earlier answer. One that
does not begins a new trace, which says where it left the nearest other one, and why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

from _inf.apps.rollouts.traces import Trace
from _inf.apps.serve.error_responses import RequestError
from _inf.apps.serve.forks import THOUGHTS, Fork, fork_of
from _inf.apps.serve.session_settings import SessionSettings
from _inf.errors import ConfigError, shown
from _inf.parts.kept import kept_messages
from _inf.request.prompts import normalize
from _inf.request.tool_template import ToolTemplate
from _inf.turns import joined_versions
from _inf.types import JSON, Message

if TYPE_CHECKING:
    from _inf.apps.rollouts.traces import TraceFile
    from _inf.apps.serve.choice import Choice

MAX_TRACES = 1024  # of a session
BYTES_PER_ID = 88  # with its mask and its log prob, in Python's lists


@dataclasses.dataclass(frozen=True)
class Answer:
    """A recorded answer: its trace, and the numbers of the trace's messages, and of the ids after
    its prompt, at its end. context: the tools and the template's keywords. ended: it has its EOS.
    """

    trace: str
    context: str
    messages: int
    ids: int
    ended: bool


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a request's answers belong. ids: the prompt's, None if its messages are to be rendered.
    answer: the one they continue. first: how many messages the first prompt of its trace has.
    traces: the ids of those that its answers are in, so far."""

    messages: list[Message] = dataclasses.field(default_factory=list)
    context: str = ""
    ids: list[int] | None = None
    answer: Answer | None = None
    first: int = 0
    traces: list[str] = dataclasses.field(default_factory=list)


class Session:
    """The traces of one session and its answers. An answer replaces its trace by a longer one.

    file: where each change is written before it is made; None: nowhere.

    Requests that run at once may continue the same answer; the first one to end continues its
    trace, and the others begin new ones.
    """

    def __init__(self, settings: SessionSettings, file: TraceFile | None = None) -> None:
        self.settings, self._file = settings, file
        # A deleted session's name may be used again.
        self._rollout = settings.rollout or uuid.uuid4().hex
        self._traces: dict[str, Trace] = {}
        self._answers: list[Answer] = []
        self._sampled = 0  # tokens
        self.size = settings.size  # in bytes, estimated
        self._lock = threading.Lock()
        self.used = time.monotonic()

    def traces(self) -> list[Trace]:
        with self._lock:
            return list(self._traces.values())

    def _newest_first(self) -> list[tuple[Answer, Trace]]:
        if len(self._traces) >= MAX_TRACES:
            raise RequestError(429, f"session: it has {MAX_TRACES} traces; delete it.")
        with self._lock:
            return [(answer, self._traces[answer.trace]) for answer in reversed(self._answers)]

    # ─── A request begins ───

    def keywords(self, asked: Mapping[str, object], most: int, prompts: int) -> JSON:
        """Return a request's keywords with the session's parameters and at most the tokens that it
        has left, in equal parts for its answers. Requests that run at once have what was left when
        they began.

        most: the `max_tokens` of a request without one. prompts: the number of its prompts. Raises
        `RequestError` if not enough is left.
        """
        settings, keywords = self.settings, self.settings.pinned(asked)
        answers = prompts * (keywords.get("n") or 1)
        if settings.max_turns is not None:
            self._left("max_turns", settings.max_turns, len(self._answers), answers)
        if settings.max_tokens is not None:
            left = self._left("max_tokens", settings.max_tokens, self._sampled, answers)
            keywords["max_tokens"] = min(keywords.get("max_tokens", most), left // answers)
        return keywords

    def _left(self, limit: str, most: int, used: int, answers: int) -> int:
        """Return what is left of a limit; refuse more answers than that."""
        if (left := most - used) <= 0:
            self._end(limit, most)
        if answers > left:
            reason = (
                f"session: its {limit} is {most}, with {left} left, and the request "
                f"asks for {answers} answers"
            )
            raise RequestError(400, f"{reason}; ask for fewer.", key=limit, code="length")
        return left

    def _end(self, limit: str, most: int) -> NoReturn:
        with self._lock:
            for trace in self._traces.values():
                self._replace(trace, limit=limit)
        reason = f"session: its {limit} of {most} is reached; delete it, or open another one."
        raise RequestError(400, reason, key=limit, code="length")

    def chat(self, messages: list[Message], context: str, template: ToolTemplate) -> Start:
        """Find the answer that a conversation continues, and the ids of its prompt."""
        recorded, shown = self._newest_first(), messages
        messages = _compared(cast("list[Message]", kept_messages(messages)))
        found = [
            (answer, trace)
            for answer, trace in recorded
            if answer.context == context
            and answer.messages < len(messages)
            and messages[: answer.messages] == trace.messages[: answer.messages]
        ]
        if found:
            answer, trace = max(found, key=lambda pair: pair[0].messages)
            # An exception of the template's code: it cannot show what follows.
            with contextlib.suppress(Exception):
                ids = _ids_to(answer, trace) + _ids_after(answer, shown, template)
                first = next(each for each in self._answers if each.trace == trace.id)
                return Start(messages, context, ids, answer, first.messages - 1)
        return Start(messages, context)

    def completion(self, ids: list[int]) -> Start:
        """Find the answer that a prompt of ids continues."""
        found = [
            (len(recorded), answer)
            for answer, trace in self._newest_first()
            if not trace.messages and ids[: len(recorded := _ids_to(answer, trace))] == recorded
        ]
        return Start(ids=ids, answer=max(found, key=lambda pair: pair[0])[1] if found else None)

    # ─── A request ends ───

    def add(self, start: Start, prompt_ids: list[int], choice: Choice) -> None:
        """Record an answer: at the end of its trace, or in a new one if that has gone on."""
        output = choice.output
        assert choice.finish_reason is not None
        answer = normalize([[choice.message]])[0] if start.messages else []
        messages = [*start.messages, *_compared(cast("list[Message]", answer))]
        sampled = output.token_ids
        mask = [int(place not in output.unsampled) for place in range(len(sampled))]
        with self._lock:
            trace = self._continued(start, prompt_ids)
            size = _size(trace) if trace.id in self._traces else 0
            added = prompt_ids[len(trace.prompt_token_ids) + len(trace.token_ids) :]
            begin, versions = len(trace.token_ids) + len(added), trace.weight_versions
            trace = self._replace(
                trace,
                token_ids=[*trace.token_ids, *added, *sampled],
                response_mask=[*trace.response_mask, *[0] * len(added), *mask],
                logprobs=[*trace.logprobs, *[0.0] * len(added), *output.logprobs],
                messages=messages,
                finish_reasons=[*trace.finish_reasons, choice.finish_reason],
                weight_versions=joined_versions(versions, output.weight_versions, begin),
            )
            self.size += _size(trace) - size
            self._sampled += len(sampled)
            end = len(trace.token_ids)
            self._answers.append(Answer(trace.id, start.context, len(messages), end, choice.ended))
            start.traces.append(trace.id)

    def _continued(self, start: Start, prompt_ids: list[int]) -> Trace:
        """Return the trace that an answer continues, or a new one: a prompt may have been cut."""
        fork = None
        if start.answer is not None:
            trace = self._traces[start.answer.trace]
            recorded = _ids_to(start.answer, trace)
            if prompt_ids[: len(recorded)] != recorded:
                fork = Fork(trace.id, start.answer.messages, "truncated")
            elif start.answer.ids == len(trace.token_ids):
                return trace
        fork = fork or self._fork(start, prompt_ids)
        return Trace(
            uuid.uuid4().hex,
            prompt_ids,
            forked_from=fork and (fork.trace, fork.messages),
            fork_reason=fork and fork.reason,
            task=self.settings.task,
            rollout=self._rollout,
        )

    def _fork(self, start: Start, prompt_ids: list[int]) -> Fork | None:
        """Of a new trace, from one that has other messages, or ids, or another choice."""
        if start.traces:
            return Fork(start.traces[0], len(start.messages), "retried")
        if start.messages:
            contexts = {answer.trace: answer.context for answer in reversed(self._answers)}
            traces = [(context, self._traces[name]) for name, context in contexts.items()]
            return fork_of(start.messages, start.context, traces)
        if start.answer is None:
            return None
        trace = self._traces[start.answer.trace]
        same = (trace.prompt_token_ids + trace.token_ids)[: len(prompt_ids)] == prompt_ids
        return Fork(trace.id, 0, "retried" if same else "edited_message")

    def _replace(self, trace: Trace, **changes: Any) -> Trace:
        """Change a trace, or add a new one; the caller has the lock."""
        before, after = self._traces.get(trace.id), dataclasses.replace(trace, **changes)
        if self._file is not None and after != before:
            self._file.write(before, after)
        self._traces[trace.id] = after
        return after

    def set_reward(self, reward: float, trace: str | None) -> None:
        with self._lock:
            if trace is not None and trace not in self._traces:
                raise ConfigError.of("trace", f"this session has no trace {shown(trace)}")
            for name in [*self._traces] if trace is None else [trace]:
                self._replace(self._traces[name], reward=reward)


def _compared(messages: list[Message]) -> list[Message]:
    """The messages without empty thoughts, which clients add or leave out."""
    return [
        {key: value for key, value in message.items() if value or key not in THOUGHTS}
        for message in messages
    ]


def _size(trace: Trace) -> int:
    ids = len(trace.prompt_token_ids) + len(trace.token_ids)
    return ids * BYTES_PER_ID + len(json.dumps(trace.messages))


def _ids_to(answer: Answer, trace: Trace) -> list[int]:
    """All ids to the end of an answer, with the prompt's."""
    return trace.prompt_token_ids + trace.token_ids[: answer.ids]


def _ids_after(answer: Answer, messages: list[Message], template: ToolTemplate) -> list[int]:
    """The template's ids between an answer and the next one. Raises `ValueError` for an image
    there, whose tokens only the model's processor writes."""
    if any(isinstance(message["content"], list) for message in messages[answer.messages :]):
        raise ValueError("an image follows the answer")
    plain = [
        {key: value for key, value in message.items() if key != "tool_calls"}
        for message in messages
    ]
    return template.after(plain, answer.messages - 1, ended=answer.ended, called=messages)
