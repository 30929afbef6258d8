"""Where a thought is ended by its budget: as vLLM 0.32.0 does, whose own class gave the same tokens
in 3000 random answers of any thoughts, with start marks of one token (2026-11-25)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from _inf.parts.budget.budget import ThinkingBudget, opened
from _inf.parts.repetition import repeats
from _inf.types import ThoughtMarks

START, END = [10, 11], [20, 21]


def answered(
    budget: int, prompt: Sequence[int], sampled: Sequence[int], *, unopened: bool = False
) -> tuple[list[int], list[int]]:
    """Twelve tokens, and which are forced. sampled: what the model would give, then 1, 2, 1 ..."""
    of_prompt = ThinkingBudget(prompt, budget, ThoughtMarks(START, END, unopened))
    ids = []
    rest, forced = iter(sampled), []
    while len(ids) < 12:
        token = of_prompt.token(ids)
        if token is None:
            token = next(rest, 1 + len(ids) % 2)
        else:
            forced.append(len(ids))
        ids.append(token)
    assert of_prompt.forced(ids) == forced
    return ids, forced


@pytest.mark.parametrize(
    ("prompt", "budget", "forced"),
    [
        ([5, *START], 3, [3, 4]),
        ([5, *START], 0, [0, 1]),
        ([5, *START, 1], 3, [2, 3]),  # what stands in the prompt counts
        ([5, *START, 1, *END, 3, *START], 2, [2, 3]),  # a thought of an earlier turn does not
        ([5, *START], 20, []),
    ],
)
def test_end_mark_is_forced_after_the_budget_of_a_thought_that_the_prompt_opens(
    prompt, budget, forced
):
    ids, places = answered(budget, prompt, [])
    assert places == forced and [ids[place] for place in places] == END[: len(forced)]


def test_thought_that_the_answer_opens_has_the_budget_from_there_on():
    ids, forced = answered(2, [5], [1, *START, 3, 4])
    assert forced == [5, 6] and ids[:7] == [1, *START, 3, 4, *END]


def test_thought_that_ends_by_itself_is_not_ended_again():
    assert answered(3, START, [1, *END, 2])[1] == []  # with the last token of the budget
    ids, forced = answered(2, START, [1, 20, 21])  # the mark has only begun: it comes whole
    assert forced == [2, 3] and ids[:4] == [1, 20, 20, 21]


def test_each_later_thought_of_the_answer_has_the_budget_too():
    ids, forced = answered(3, START, [1, *END, 3, *START, 4, 5, 6])
    assert ids[:11] == [1, *END, 3, *START, 4, 5, 6, *END] and forced == [9, 10]
    assert answered(1, START, [1, *START, 3])[1] == [1, 2, 6, 7]  # the mark stands at 3 and 4
    assert answered(3, START, [1, *START, 3])[1] == [3, 4]  # in a thought a mark opens none


def test_unopened_answer_is_a_thought_unless_the_prompt_ends_one():
    assert answered(2, [5], [], unopened=True)[1] == [2, 3]
    assert answered(2, [5, *END, 9], [], unopened=True)[1] == []
    assert answered(2, [*END, *[9] * 16], [], unopened=True)[1] == [2, 3]


def test_mark_in_a_message_that_has_ended_opens_and_closes_nothing():
    marks = ThoughtMarks(START, END, False, turn_ends=[9, 8])
    assert opened([5, *START, 1, 9, 5], marks) is None
    assert opened([5, *START, 1, 9, *START, 1, 1], marks) == -2
    assert opened([5, *END, 8, 5], ThoughtMarks(START, END, True, turn_ends=[9, 8])) == 0


def test_answer_repeats_where_its_end_is_equal_parts():
    def found(ids: Sequence[int], least: int, most: int, count: int) -> bool:
        of = {"min_pattern_size": least, "max_pattern_size": most, "min_count": count}
        return repeats(list(ids), of)

    assert found([9, 7, 7, 7], 1, 1, 3) and not found([9, 7, 7, 7], 1, 1, 4)
    assert not found([7, 7, 7, 9], 1, 3, 2)  # it is the end that counts
    assert found([5, 1, 2, 1, 2], 1, 2, 2) and not found([5, 1, 2, 1, 2], 1, 1, 2)
    assert not found([7] * 3, 2, 2, 2)
