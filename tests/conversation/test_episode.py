"""One row of a conversation, without an engine."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.conversation.continued import take_up
from _inf.conversation.episode import Episode
from _inf.conversation.recorder import Recorder
from _inf.conversation.rules import Rules
from _inf.parts.budget import Forced
from _inf.parts.continued.rows import continued_row
from _inf.turns import TurnOptions
from _inf.types import Prompt, Request, RequestOutput, SamplingParams
from inf import GenerationRow, PromptError, as_rollouts
from tests.support.conversation_rules import rules, tiny_rules
from tests.support.refusals import refused
from tests.support.tiny import VOCABULARY

TEMPLATE = """{% for m in messages %}{% if loop.index0 %}<|new|>{% endif %}{{ m['role'] }}:
{{ m['content'] }}<|im_end|>{% endfor %}assistant:"""


PROMPT, END = [5, 6], 7
HI = [{"role": "user", "content": "hi"}]


def episode(own: Rules, asked: Prompt, *answers: RequestOutput, **params: Any) -> Episode:
    """A row that is given these answers."""
    given = iter(answers)

    async def turn(request: Request) -> RequestOutput:
        return next(given)

    return Episode(
        asked, SamplingParams(max_tokens=50, **params), TurnOptions(), own, Recorder(turn, 0)
    )


def answer(row: Episode) -> None:
    row.add_answer(asyncio.run(row.recorder.sample(row.next_request())))


def test_next_turn_with_a_token_that_the_model_has_no_row_for_ends_its_row_only():
    """The engine would die of such a token, which a tokenizer has if it was extended later."""
    own = tiny_rules(TEMPLATE, "<|new|>")
    end = own.model.tokenizer.eos_token_id
    answered = RequestOutput([70, end], [-1.0, -1.0], "stop", end, 1, 2, 0, [(0, 0)])
    row = episode(own, Prompt([5], messages=HI), answered)
    answer(row)
    row.add_user_message("Go on.")
    assert row.error == f"the next turn has token {VOCABULARY}, outside the model's vocabulary"
    assert row.over and row.ids == [70, end]


def ended(template: Any, *answers: RequestOutput) -> RequestOutput:
    """A row of these answers, with a user's message after each but the last."""
    tokenizer = SimpleNamespace(decode=lambda ids, **kwargs: str(ids))
    row = episode(rules(template, tokenizer), Prompt(PROMPT, messages=HI), *answers)
    for number in range(len(answers)):
        if number:
            row.add_user_message("Go on.")
        answer(row)
    return row.output({})


def answered(ids: list[int], reason: str, forced: Sequence[int] = ()) -> RequestOutput:
    logprobs = [0.0 if place in forced else -1.0 for place in range(len(ids))]
    matched = END if reason == "stop" else None
    count = len(ids)
    return RequestOutput(
        ids, logprobs, reason, matched, 2, count, 0, [(0, 0)], parts=(Forced(forced),)
    )


def as_row(output: RequestOutput) -> GenerationRow:
    of_output = {"token_ids": output.token_ids, "logprobs": output.logprobs}
    row = GenerationRow("", **of_output, finish_reason="abort", transcript=output.transcript)
    return dataclasses.replace(row, prompt_token_ids=PROMPT, weight_versions=[(0, 0)])


def between(*ids: int) -> Any:
    return SimpleNamespace(after=lambda *_, **about: list(ids), escape_special_tokens=str)


def test_min_tokens_are_of_all_turns():
    own = rules(between(9), SimpleNamespace(decode=lambda ids, **kwargs: str(ids)))
    said = answered([1, 2, END], "stop")
    row = episode(own, Prompt(PROMPT, messages=HI), said, min_tokens=5)
    answer(row)
    row.add_user_message("Go on.")
    assert row.next_request().params.min_tokens == 2


@pytest.mark.parametrize("forced", [[0], [1, 2]])
def test_answer_with_forced_tokens_is_one_answer_and_its_row_is_not_continued(forced):
    row = as_row(
        ended(between(9, 9), answered([1, 2, 3, END], "stop", forced), answered([4, 5], "abort"))
    )
    assert row.transcript.num_turns == 2
    assert row.transcript.answers == [range(0, 4), range(6, 8)]
    [saved] = as_rollouts([row])
    assert saved.answer_places == [[0, 4], [6, 8]]
    for each in (row, saved):
        with refused(PromptError, "prompt 0 is a row with ids that .* thinking_token_budget"):
            continued_row(each, 0)


@pytest.mark.parametrize("template", [between(9, 9), between()])
def test_row_is_continued_with_the_answers_that_it_has(template):
    """Also if nothing stands between two of them."""
    row = as_row(ended(template, answered([1, END], "stop"), answered([4, 5], "abort")))
    [saved] = as_rollouts([row])
    for each in (row, saved):
        asked = continued_row(each, 0)
        again = episode(rules(template, SimpleNamespace()), asked)
        take_up(again, asked.so_far)
        [first] = again.recorder.sampled
        assert first.prompt_ids == PROMPT and first.answer.token_ids == [1, END]
        request = again.next_request()
        assert request.known_ids == [*request.token_ids, 4, 5]
        assert request.token_ids == [*PROMPT, 1, END, *template.after()]
    with refused(PromptError, "answer_places"):
        continued_row(dataclasses.replace(saved, answer_places=None), 0)
