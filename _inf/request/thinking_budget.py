"""Which tokens of an answer are forced by `thinking_token_budget`, so that its thought ends.

The meaning is vLLM's (0.32.0, `v1/sample/thinking_budget_state.py`): after so many tokens of a
thought the tokens of its end mark follow, whatever the model would sample. The tokens that stand in
the prompt after the mark that opens the thought count. A backend asks before each token, and what
was forced is found in a finished answer by the same rule.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from _inf.types import Request, ThoughtMarks

TAIL = 16  # tokens at the end of a prompt, among which an end mark closes a thought


class ThinkingBudget:
    """The budget of the answers to one prompt."""

    def __init__(self, prompt_ids: Sequence[int], budget: int, marks: ThoughtMarks) -> None:
        self._budget, self._marks = budget, marks
        prompt = list(prompt_ids)
        opened, closed = _last(prompt, marks.start), _last(prompt, marks.end)
        self._in_prompt: int | None = None  # tokens of the thought there; None: it opens none
        if opened > closed:
            self._in_prompt = len(prompt) - opened - len(marks.start)
        elif marks.unopened and _last(prompt[-TAIL:], marks.end) < 0:
            self._in_prompt = 0

    def token(self, generated: Sequence[int]) -> int | None:
        """The token that must follow what was generated; None: any may."""
        here = len(generated)
        for places in self._places(list(generated)):
            if here in places:
                return self._marks.end[here - places.start]
        return None

    def forced(self, answer: Sequence[int]) -> list[int]:
        """The places of an answer's tokens that were forced."""
        places = itertools.chain.from_iterable(self._places(list(answer)))
        return [place for place in places if place < len(answer)]

    def _places(self, generated: list[int]) -> Iterator[range]:
        """Where the end mark is forced: once in each thought that lasts until there."""
        size, start = len(self._marks.end), self._start(generated, 0)
        if self._in_prompt is not None:
            start = -self._in_prompt  # below 0: in the prompt
        while start is not None:
            begin, first = max(0, start), max(0, start + self._budget)
            if (end := _first(generated[begin:first], self._marks.end)) is not None:
                start = self._start(generated, begin + end + size)
            elif len(generated) < first:
                return
            else:
                yield range(first, first + size)
                start = self._start(generated, first + size)

    def _start(self, generated: list[int], after: int) -> int | None:
        """The place of the first token of the next thought."""
        place = _first(generated[after:], self._marks.start)
        return None if place is None else after + place + len(self._marks.start)


def budget_of(request: Request) -> ThinkingBudget | None:
    """The budget of a request; None: it has none."""
    params = request.params
    if params.thinking_token_budget is None or params.thought_marks is None:
        return None
    return ThinkingBudget(request.token_ids, params.thinking_token_budget, params.thought_marks)


def _first(ids: list[int], mark: list[int]) -> int | None:
    """The first place of a mark in ids; None: there is none."""
    place = -1
    with contextlib.suppress(ValueError):
        while True:
            place = ids.index(mark[0], place + 1)
            if ids[place : place + len(mark)] == mark:
                return place
    return None


def _last(ids: list[int], mark: list[int]) -> int:
    """The last place of a mark in ids; -1: there is none."""
    found = _first(ids[::-1], mark[::-1])
    return -1 if found is None else len(ids) - found - len(mark)
