"""What is derived from the answers of a row, made up; real ones are in
`tests/engine/answers/test_agent_loops.py`."""

from __future__ import annotations

import dataclasses
import math
import random
from types import SimpleNamespace
from typing import Any

import pytest

from _inf.conversation.agent_loops.result import answered_row
from _inf.conversation.recorder import Recorder, Sampled
from _inf.conversation.row import unsampled as warnings_of
from _inf.parts.budget import Forced
from _inf.types import Request, RequestOutput

PROMPT, STOP = [1, 2, 3], 9
TOKENIZER = SimpleNamespace(decode=lambda ids, **kwargs: f"<{ids[0]}>")


def sampled(prompt: list[int], ids: list[int]) -> Sampled:
    logprobs = [-token / 10 for token in ids]
    return Sampled(prompt, RequestOutput(ids, logprobs, finish_reason="stop", matched_stop=STOP))


# Two turns with two ids of the template between them.
REQUESTS = [sampled(PROMPT, [4, 5, 9]), sampled([*PROMPT, 4, 5, 9, 6, 7], [8, 9])]
IDS, MASK = [4, 5, 9, 6, 7, 8, 9], [1, 1, 1, 0, 0, 1, 1]


def recorder(requests: list[Sampled] = REQUESTS) -> Recorder:
    async def turn(request: Request) -> RequestOutput:
        raise AssertionError

    made = Recorder(turn, 0)
    made.sampled.extend(requests)
    return made


def row(
    ids: list[int], mask: list[int], requests: list[Sampled] = REQUESTS, **more: Any
) -> RequestOutput:
    given = {
        "prompt_ids": PROMPT,
        "response_ids": ids,
        "response_mask": mask,
        "response_logprobs": None,
        "multi_modal_data": None,
        "reward_score": None,
        "num_turns": 4,
        "extra_fields": {},
    }
    returned = SimpleNamespace(**(given | more))
    return answered_row("mine", returned, recorder(requests), (8, 99), 10**6)


def unsampled(ids: list[int], mask: list[int], requests: list[Sampled] = REQUESTS) -> list[int]:
    """The places in a response whose mask is not what was sampled."""
    return list(row(ids, mask, requests).transcript.unsampled)


def test_forced_token_has_mask_0():
    """Of `thinking_token_budget`."""
    first, second = REQUESTS
    answer = dataclasses.replace(first.answer, parts=(Forced([1]),))
    asked = [Sampled(first.prompt_ids, answer), second]
    assert unsampled(IDS, [1, 0, *MASK[2:]], asked) == []


@pytest.mark.parametrize(
    ("ids", "mask", "places"),
    [
        (IDS, [0, *MASK[1:]], [0]),  # a sampled id lost its mask
        (IDS, [1, 1, 1, 1, 0, 1, 1], [3]),  # an id of the template got one
        # The template's ids differ from those of the second request: its answer is another's.
        ([4, 5, 9, 6, 6, 8, 9], MASK, [5, 6]),
        ([], [], []),
    ],
)
def test_places_that_were_not_sampled(ids, mask, places):
    assert unsampled(ids, mask) == places


def test_requests_of_other_prompts_and_answers_that_were_not_kept_do_not_count():
    beside = [sampled([1, 2], [7, 7]), sampled([5], [4]), sampled(PROMPT, [4, 8])]
    assert unsampled(IDS, MASK, [*beside, *REQUESTS]) == []


def test_any_exact_row_is_exact_and_any_changed_id_is_found():
    drawn = random.Random(5)
    for _ in range(300):
        whole, mask, requests = list(PROMPT), [], []
        for _turn in range(drawn.randint(1, 4)):
            between = [drawn.randrange(20) for _ in range(drawn.randrange(4))]
            ids = [drawn.randrange(20) for _ in range(drawn.randint(1, 6))]
            requests.append(sampled([*whole, *between], ids))
            whole += between + ids
            mask += [0] * len(between) + [1] * len(ids)
        ids, end, place = (
            whole[len(PROMPT) :],
            drawn.randint(1, len(mask)),
            drawn.randrange(len(mask)),
        )
        assert unsampled(ids[:end], mask[:end], requests) == []
        ids[place] += 100
        later = [n for n in range(place, len(mask)) if mask[n]]
        assert unsampled(ids, mask, requests) == later


def test_row_ends_as_its_last_request_did():
    whole = row(IDS, MASK)
    assert (whole.finish_reason, whole.matched_stop) == ("stop", STOP)
    assert whole.transcript.answer_ids == [8, 9]
    cut = row(IDS[:6], MASK[:6])
    assert (cut.finish_reason, cut.matched_stop) == ("length", None)
    assert cut.transcript.answer_ids == [8]
    after_a_tool = row([*IDS, 6, 6], [*MASK, 0, 0])
    assert after_a_tool.transcript.answer_ids == [8, 9] and after_a_tool.matched_stop == STOP
    unknown = row([7, 7, 5, 6], [1, 1, 0, 1])
    assert (unknown.finish_reason, unknown.matched_stop) == ("stop", None)


def test_log_probs_are_the_loops_own_or_the_recorded_ones():
    recorded = row(IDS, MASK)
    assert recorded.logprobs == [-0.4, -0.5, -0.9, -0.8, -0.9]
    assert recorded.transcript.logprobs == [-0.4, -0.5, -0.9, 0.0, 0.0, -0.8, -0.9]
    own = row(IDS, MASK, response_logprobs=[-1.0] * 7)
    assert own.logprobs == [-1.0] * 5
    unsampled_first = row([7, 5, 9], [1, 1, 1])
    assert all(map(math.isnan, unsampled_first.logprobs))


def test_warning_names_the_loop_and_the_first_place():
    outputs = [row(IDS, MASK), row(IDS, MASK[:5] + [0, 1]), row([7, 7], [1, 1])]
    assert [*warnings_of(outputs[:1], TOKENIZER)] == []
    [said] = warnings_of(outputs, TOKENIZER)
    assert "row 1 it is wrong at 1 of 7 ids. The first is token 5 of the response, in turn" in said
    assert "'<8>' (id 8) was sampled there and has mask 0" in said
