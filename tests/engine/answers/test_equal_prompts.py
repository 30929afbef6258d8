"""Equal prompts are computed once, and their rows are what they are alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from inf import InferenceEngine
from tests.support.prompts import as_ids
from tests.support.tiny import VOCABULARY

PROMPTS, SAMPLES = 12, 8  # more rows than run at once
DRAWN = {"temperature": 1.0, "ignore_eos": True}


def new_prompts(count: int) -> list[dict[str, Any]]:
    """Ids that no prefix cache has."""
    draw = random.SystemRandom()
    return as_ids([[draw.randrange(5, VOCABULARY) for _ in range(48)] for _ in range(count)])


def once(engine: InferenceEngine, prompts: Sequence[dict[str, Any]]) -> int:
    """What the cache then gives. SGLang computes the last token of each row's prompt."""
    last = 1 if engine.config.rollout.name == "sglang" else 0
    return sum((SAMPLES - 1) * (len(each["prompt_token_ids"]) - last) for each in prompts)


@pytest.mark.parametrize("n", [1, SAMPLES])
def test_rows_of_a_prompt_compute_it_once(tiny, n):
    """Whether it is repeated or sampled."""
    prompts = new_prompts(PROMPTS)
    asked = [each for each in prompts for _ in range(SAMPLES // n)]
    lengths = [1 + row % 7 for row in range(len(asked))]  # so that rows begin at different times
    output = tiny.generate(asked, n=n, max_tokens=lengths, **DRAWN)
    cached = sum(row.cached_tokens for row in output)
    assert 0 <= cached - once(tiny, prompts) <= 3 * PROMPTS  # first ids of another, by chance


def test_rows_of_equal_prompts_are_what_they_are_alone(tiny):
    """Also their ends: the others go on."""
    first, second = new_prompts(2)
    batch, lengths = [first, second, first, first, second], [1, 30, 2, 17, 12]
    together = tiny.generate(batch, seed=[*range(5)], max_tokens=lengths, **DRAWN)
    for row, prompt in enumerate(batch):
        [alone] = tiny.generate(prompt, seed=row, max_tokens=lengths[row], **DRAWN)
        assert together[row].token_ids == alone.token_ids and len(alone.token_ids) == lengths[row]
        assert together[row].logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    assert len({tuple(row.token_ids) for row in together}) == 5


def test_log_probs_of_equal_prompts_are_those_of_a_score(tiny):
    [prompt] = new_prompts(1)
    output = tiny.generate(prompt, n=3, max_tokens=4, prompt_logprobs=True, **DRAWN)
    ids = prompt["prompt_token_ids"]
    [expected] = tiny.get_logprobs({"prompt_token_ids": ids[:1]}, [ids[1:]])
    for row in output:
        assert row.prompt_logprobs[0] is None
        assert row.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-4)
