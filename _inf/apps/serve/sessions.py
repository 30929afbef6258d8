"""Sessions: conversations over HTTP whose sampled ids are kept.

In: a request's messages or ids, and later its finished choices. Out: the ids with which its prompt
begins, recorded ones wherever it goes on from an earlier answer, and `Trace`s. A conversation that
does not go on from one begins a new trace, which says where it left the nearest other one.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from _inf.apps.openai_format import BadRequest
from _inf.apps.serve.errors import RequestError
from _inf.errors import shown
from _inf.request.prompts import normalize
from _inf.request.template import Template
from _inf.types import Message, Trace

if TYPE_CHECKING:
    from _inf.apps.serve.choice import Choice

MOST_SESSIONS = 1024
MOST_TRACES = 1024  # of a session
SESSION_SECONDS = 6 * 3600.0  # without a request
SESSION_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)


@dataclasses.dataclass(frozen=True)
class Answer:
    """Where an answer ends: in its trace's messages, and in the ids after its prompt. ended: it has
    its EOS."""

    messages: int
    ids: int
    ended: bool


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """A trace, and where its answers end. context: the tools and the template's keywords."""

    trace: Trace
    answers: tuple[Answer, ...]
    context: str

    def ids_to(self, answer: Answer) -> list[int]:
        """All ids to the end of an answer, with the prompt's."""
        return self.trace.prompt_token_ids + self.trace.token_ids[: answer.ids]


@dataclasses.dataclass(frozen=True)
class Start:
    """Where a request's answers belong.

    ids: the prompt's, None if its messages are to be rendered. trajectory, answer: what they go on
    from, or None. forked_from: of a new trace, the trace that it left and at which message.
    """

    messages: list[Message] = dataclasses.field(default_factory=list)
    context: str = ""
    ids: list[int] | None = None
    trajectory: Trajectory | None = None
    answer: Answer | None = None
    forked_from: tuple[str, int] | None = None

    def rendered(self) -> Start:
        """The same where the recorded ids cannot be used."""
        if self.trajectory is None or self.answer is None:
            return self
        fork = (self.trajectory.trace.id, self.answer.messages)
        return Start(self.messages, self.context, forked_from=fork)


class Session:
    """The trajectories of one session. They are frozen: an answer replaces its trajectory.

    Requests that run at once may go on from the same answer; the first one to end continues its
    trajectory, and the others become new ones.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._trajectories: dict[str, Trajectory] = {}
        self._lock = threading.Lock()
        self.used = time.monotonic()

    def traces(self) -> list[Trace]:
        """All traces, in the order in which they began."""
        with self._lock:
            return [each.trace for each in self._trajectories.values()]

    def _newest_first(self) -> list[Trajectory]:
        with self._lock:
            return list(self._trajectories.values())[::-1]

    def _check_size(self) -> None:
        if len(self._trajectories) >= MOST_TRACES:
            raise RequestError(429, f"session: it has {MOST_TRACES} traces; delete it.")

    # ─── A request begins ───

    def chat(self, messages: list[Message], context: str, template: Template) -> Start:
        """Find the answer that a conversation goes on from, and the ids of its prompt."""
        self._check_size()
        known = [each for each in self._newest_first() if each.context == context]
        found = [
            (answer, each)
            for each in known
            for answer in each.answers
            if answer.messages < len(messages)
            and messages[: answer.messages] == each.trace.messages[: answer.messages]
        ]
        if found:
            answer, trajectory = max(found, key=lambda pair: pair[0].messages)
            try:
                added = _ids_after(answer, messages, template)
            except Exception:  # of the template's code: it cannot show what follows
                found = []
            else:
                ids = trajectory.ids_to(answer) + added
                return Start(messages, context, ids, trajectory, answer)
        return Start(messages, context, forked_from=_fork(messages, known))

    def completion(self, ids: list[int]) -> Start:
        """Find the answer that a prompt of ids goes on from."""
        self._check_size()
        found = [
            (len(recorded), answer, each)
            for each in self._newest_first()
            for answer in each.answers
            if not each.trace.messages and ids[: len(recorded := each.ids_to(answer))] == recorded
        ]
        if not found:
            return Start(ids=ids)
        _, answer, trajectory = max(found, key=lambda each: each[0])
        return Start(ids=ids, trajectory=trajectory, answer=answer)

    # ─── A request ends ───

    def add(self, start: Start, prompt_ids: list[int], choice: Choice) -> None:
        """Record an answer: at the end of its trajectory, or in a new one if that has gone on."""
        output = choice.output
        assert output is not None and choice.finish_reason is not None
        said: list[Any] = [*normalize([[choice.message()]])[0]] if start.messages else []
        messages, sampled = [*start.messages, *said], output.token_ids
        with self._lock:
            before = self._continued(start, prompt_ids)
            trace = before.trace
            added = prompt_ids[len(trace.prompt_token_ids) + len(trace.token_ids) :]
            trace = dataclasses.replace(
                trace,
                token_ids=[*trace.token_ids, *added, *sampled],
                response_mask=[*trace.response_mask, *[0] * len(added), *[1] * len(sampled)],
                logprobs=[*trace.logprobs, *[0.0] * len(added), *output.logprobs],
                messages=messages,
                finish_reasons=[*trace.finish_reasons, choice.finish_reason],
                weight_versions=[*trace.weight_versions, output.weight_version],
            )
            answer = Answer(len(messages), len(trace.token_ids), choice.ended)
            answers = (*before.answers, answer)
            self._trajectories[trace.id] = Trajectory(trace, answers, start.context)

    def _continued(self, start: Start, prompt_ids: list[int]) -> Trajectory:
        """Return the trajectory that an answer continues, or a new one."""
        fork = start.forked_from
        if start.trajectory is not None and start.answer is not None:
            now = self._trajectories[start.trajectory.trace.id]
            if now.answers[-1] == start.answer:
                return now
            fork = (now.trace.id, start.answer.messages)
        return Trajectory(Trace(uuid.uuid4().hex, prompt_ids, forked_from=fork), (), start.context)

    def set_reward(self, reward: float, trace: str | None) -> None:
        """Set the reward of one trace, or of all."""
        with self._lock:
            if trace is not None and trace not in self._trajectories:
                raise BadRequest(f"trace: this session has no trace {shown(trace)}")
            for name in [trace] if trace is not None else list(self._trajectories):
                old = self._trajectories[name]
                rewarded = dataclasses.replace(old.trace, reward=reward)
                self._trajectories[name] = dataclasses.replace(old, trace=rewarded)


def _ids_after(answer: Answer, messages: list[Message], template: Template) -> list[int]:
    """The template's ids between an answer and the next one."""
    plain = [
        {key: value for key, value in message.items() if key != "tool_calls"}
        for message in messages
    ]
    index = answer.messages - 1
    return template.after(plain, index, ended=answer.ended, called=messages)


def _fork(messages: list[Message], known: Sequence[Trajectory]) -> tuple[str, int] | None:
    """The trace with the most first messages in common, and how many; None if there is none."""
    most: tuple[str, int] | None = None
    for each in known:
        pairs = zip(messages, each.trace.messages, strict=False)
        common = next(
            (index for index, (ours, theirs) in enumerate(pairs) if ours != theirs),
            min(len(messages), len(each.trace.messages)),
        )
        if common > (most[1] if most else 0):
            most = (each.trace.id, common)
    return most


class Sessions:
    """The open sessions by name. One that was not used for long is dropped when another opens."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._open: dict[str, Session] = {}
        # Those whose first requests run, and may be refused: nothing else keeps them.
        self._new: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._clock = clock

    def names(self) -> list[str]:
        """The names of the open sessions."""
        with self._lock:
            return list(self._open)

    def of_request(self, name: str) -> Session:
        """Return the session of a request; a new one is not open before `open`."""
        if not SESSION_NAME.fullmatch(name):
            raise BadRequest("session: its name has letters, digits, . _ - only, at most 128")
        with self._lock:
            session = self._open.get(name) or self._new.get(name)
            if session is None:
                self._drop_old()
                if len(self._open) + len(self._new) >= MOST_SESSIONS:
                    raise RequestError(429, f"{MOST_SESSIONS} sessions are open; delete some.")
                session = self._new[name] = Session(name)
            session.used = self._clock()
            return session

    def open(self, session: Session) -> None:
        """Open a new session, because the engine has begun to answer a request of it."""
        with self._lock:
            if self._new.pop(session.name, None) is session:
                self._open[session.name] = session

    def _drop_old(self) -> None:
        oldest = self._clock() - SESSION_SECONDS
        for name in [name for name, each in self._open.items() if each.used < oldest]:
            del self._open[name]

    def get(self, name: str) -> Session:
        """Return an open session."""
        with self._lock:
            if name not in self._open:
                raise RequestError(404, f"session: there is no session {shown(name)}.")
            return self._open[name]

    def delete(self, name: str) -> None:
        """Forget a session and its traces."""
        self.get(name)
        with self._lock:
            self._open.pop(name, None)
