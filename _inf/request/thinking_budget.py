"""Which tokens of an answer are forced by `thinking_token_budget`, so that its thought ends.

The meaning is vLLM's (0.32.0, `v1/sample/thinking_budget_state.py`): after so many tokens of a
thought the tokens of its end mark follow, whatever the model would sample. The tokens that stand in
the prompt after the mark that opens the thought count. A backend asks before each token, and what
was forced is found in a finished answer by the same rule.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence

from _inf.types import Request, ThoughtMarks

TAIL = 16  # tokens at the end of a prompt, among which an end mark closes a thought in vLLM


@dataclasses.dataclass
class _Reached:
    """How far an answer was read. start: the place of the open thought's first token, below 0 in
    the prompt; None: no thought is open. searched: tokens in which no further mark begins."""

    start: int | None
    searched: int = 0

    def find(self, mark: list[int], ids: Sequence[int], end: int) -> bool:
        """Whether the mark is in the ids before `end`; the search goes on behind it."""
        place = _first(list(ids[self.searched : end]), mark)
        if place is None:
            self.searched = max(self.searched, min(end, len(ids)) - len(mark) + 1)
            return False
        self.searched += place + len(mark)
        return True


class ThinkingBudget:
    """The budget of the answers to one prompt. `token` reads one answer on from where it was."""

    def __init__(self, prompt_ids: Sequence[int], budget: int, marks: ThoughtMarks) -> None:
        self._budget, self._marks = budget, marks
        self._first = opened(prompt_ids, marks)
        self._reached = _Reached(self._first)

    def token(self, generated: Sequence[int]) -> int | None:
        """The token that must follow what was generated, as much as at the last call or more; None:
        any may."""
        here = len(generated)
        for places in self._places(generated, self._reached):
            if here in places:
                return self._marks.end[here - places.start]
        return None

    def forced(self, answer: Sequence[int]) -> list[int]:
        """The places of an answer's tokens that were forced."""
        return [
            place
            for places in self._places(answer, _Reached(self._first))
            for place, token in zip(places, self._marks.end, strict=True)
            if answer[place : place + 1] == [token]
        ]

    def _places(self, generated: Sequence[int], reached: _Reached) -> Iterator[range]:
        """Where the end mark is forced: once in each thought that lasts until there."""
        while True:
            if reached.start is None:
                if not reached.find(self._marks.start, generated, len(generated)):
                    return
                reached.start = reached.searched
            first = max(0, reached.start + self._budget)
            if reached.find(self._marks.end, generated, first):
                reached.start = None
            elif len(generated) < first:
                return
            else:
                places = range(first, first + len(self._marks.end))
                yield places
                reached.start, reached.searched = None, places.stop


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
