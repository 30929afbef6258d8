"""Which tokens of an answer are forced by `thinking_token_budget`, so that its thought ends.

The meaning is vLLM's (0.32.0, `v1/sample/thinking_budget_state.py`): after so many tokens of a
thought the tokens of its end mark follow, whatever the model would sample. The tokens that stand in
the prompt after the mark that opens the thought count. A backend asks before each token, and what
was forced is found in a finished answer by the same rule.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Sequence

from _inf.parts.budget import Budget, Forced
from _inf.types import Request, RequestOutput, ThoughtMarks

TAIL = 16  # tokens at the end of a prompt, among which an end mark closes a thought in vLLM


class _Reader:
    """Reads an answer token by token. start: the place of the open thought's first token, below 0
    in the prompt; None: no thought is open."""

    def __init__(self, start: int | None, budget: int, marks: ThoughtMarks) -> None:
        self._start, self._budget, self._marks = start, budget, marks
        self._next = 0  # the place that is looked at next
        self._begin = 0  # the marks before it have been read
        self._forced = range(0)

    def token(self, ids: Sequence[int], place: int) -> int | None:
        """The token that must stand at `place`, which is not before that of the last call."""
        for here in range(self._next, place + 1):
            self._look(ids, here)
        self._next = place + 1
        return self._marks.end[place - self._forced.start] if place in self._forced else None

    def _look(self, ids: Sequence[int], here: int) -> None:
        """Find a mark that ends at a place, or the place where the end mark is forced."""
        mark = self._marks.end if self._start is not None else self._marks.start
        first = here - len(mark)
        if first >= self._begin and ids[first:here] == mark:
            self._begin, self._start = here, here if self._start is None else None
        if self._start is not None and here >= self._start + self._budget:
            self._forced = range(here, here + len(self._marks.end))
            self._begin, self._start = self._forced.stop, None


class ThinkingBudget:
    """The budget of the answers to one prompt. `token` reads one answer on from where it was."""

    def __init__(self, prompt_ids: Sequence[int], budget: int, marks: ThoughtMarks) -> None:
        self._reader = functools.partial(_Reader, opened(prompt_ids, marks), budget, marks)
        self._reached = self._reader()

    def token(self, generated: Sequence[int]) -> int | None:
        """The token that must follow what was generated, as much as at the last call or more; None:
        any may."""
        return self._reached.token(generated, len(generated))

    def forced(self, answer: Sequence[int]) -> list[int]:
        """The places of an answer's tokens that were forced."""
        reader = self._reader()
        return [place for place, token in enumerate(answer) if reader.token(answer, place) == token]


def opened(prompt_ids: Sequence[int], marks: ThoughtMarks) -> int | None:
    """Where the thought starts in which an answer to a prompt begins, 0 or below; None: in none.

    Only what follows the last message that has ended counts: the last start mark opens a thought if
    no end mark follows it. Where the tokens that end messages are unknown, it is as in vLLM.
    """
    own = own_part(prompt_ids, marks.turn_ends)
    start, end = _last(own, marks.start), _last(own, marks.end)
    if start > end:
        return start + len(marks.start) - len(own)
    searched = own if marks.turn_ends else own[-TAIL:]
    return 0 if marks.unopened and _last(searched, marks.end) < 0 else None


def own_part(ids: Sequence[int], turn_ends: Collection[int]) -> list[int]:
    """The ids after the last one that ends a message."""
    ends = (place for place in range(len(ids), 0, -1) if ids[place - 1] in turn_ends)
    return list(ids[next(ends, 0) :])


def budget_of(request: Request) -> ThinkingBudget | None:
    """The budget of a request; None: it has none."""
    part = request.params.of(Budget)
    if part is None or part.marks is None:
        return None
    return ThinkingBudget(request.token_ids, part.thinking_token_budget, part.marks)


def with_forced(request: Request, output: RequestOutput) -> RequestOutput:
    """A whole answer, with the places of its forced tokens."""
    if (budget := budget_of(request)) is None or not (places := budget.forced(output.token_ids)):
        return output
    return dataclasses.replace(output, parts=(*output.parts, Forced(places)))


def _last(ids: list[int], mark: list[int]) -> int:
    """The last place of a mark in ids; -1: there is none."""
    places = range(len(ids) - len(mark), -1, -1)
    return next((place for place in places if ids[place : place + len(mark)] == mark), -1)
