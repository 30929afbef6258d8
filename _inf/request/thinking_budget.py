"""Which tokens of an answer are forced by `thinking_token_budget`, so that its thought ends.

The meaning is vLLM's (0.32.0, `v1/sample/thinking_budget_state.py`): after so many tokens of a
thought the tokens of its end mark follow, whatever the model would sample. The tokens that stand in
the prompt after the mark that opens the thought count. A backend asks before each token, and what
was forced is found in a finished answer by the same rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

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
        places = self._places(generated)
        here = len(generated)
        return self._marks.end[here - places.start] if here in places else None

    def forced(self, answer: Sequence[int]) -> list[int]:
        """The places of an answer's tokens that were forced."""
        return [place for place in self._places(answer) if place < len(answer)]

    def _places(self, generated: Sequence[int]) -> range:
        """Where the end mark is forced, if the thought lasts until there."""
        start = self._start(generated)
        if start is None or len(generated) < (first := max(0, start + self._budget)):
            return range(0)
        thought = list(generated[max(0, start) : first])
        ended = _last(thought, self._marks.end) >= 0
        return range(0) if ended else range(first, first + len(self._marks.end))

    def _start(self, generated: Sequence[int]) -> int | None:
        """The place of the thought's first token in the answer, below 0 if it is in the prompt."""
        if self._in_prompt is not None:
            return -self._in_prompt
        place = _first(list(generated), self._marks.start)
        return None if place is None else place + len(self._marks.start)


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
