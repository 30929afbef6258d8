"""Equal prompts are computed once, and their rows are what they are alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from inf import GenerationOutput, InferenceEngine
from tests.support.tiny import VOCABULARY

PROMPTS, SAMPLES = 12, 8  # more rows than run at once


def new_prompts(count: int, tokens: int = 48) -> list[dict[str, Any]]:
    """Ids that no prefix cache has."""
    draw = random.SystemRandom()
    return [
        {"prompt_token_ids": [draw.randrange(5, VOCABULARY) for _ in range(tokens)]}
        for _ in range(count)
    ]


def cached(output: GenerationOutput) -> list[int]:
    return [about["cached_tokens"] for about in output.metadata]


def once(engine: InferenceEngine, prompts: Sequence[dict[str, Any]], samples: int) -> int:
    """What the cache then gives. SGLang computes the last token of each row's prompt."""
    last = 1 if engine.config.rollout.name == "sglang" else 0
    return sum((samples - 1) * (len(each["prompt_token_ids"]) - last) for each in prompts)


def test_samples_of_a_prompt_compute_it_once(tiny: InferenceEngine) -> None:
    prompts = new_prompts(PROMPTS)
    lengths = [1 + row % 7 for row in range(PROMPTS)]  # so that rows begin at different times
    output = tiny.generate(prompts, n=SAMPLES, temperature=1.0, max_tokens=lengths, ignore_eos=True)
    by_chance = 3 * PROMPTS  # first ids of a prompt that another one had
    assert 0 <= sum(cached(output)) - once(tiny, prompts, SAMPLES) <= by_chance


@pytest.mark.verl
@pytest.mark.parametrize("repeated", [False, True], ids=["n", "repeated"])
def test_rows_of_a_trainers_batch_compute_a_prompt_once(
    tiny: InferenceEngine, repeated: bool
) -> None:
    prompts, before = new_prompts(4), tiny.stats()["cached_tokens"]
    asked = [each for each in prompts for _ in range(SAMPLES)] if repeated else prompts
    n = 1 if repeated else SAMPLES
    batch = tiny.rollout_batch(asked, n=n, temperature=1.0, max_tokens=5, ignore_eos=True)
    assert len(batch) == 4 * SAMPLES
    cached_tokens = tiny.stats()["cached_tokens"] - before
    assert 0 <= cached_tokens - once(tiny, prompts, SAMPLES) <= 12  # by chance


def test_rows_of_equal_prompts_are_what_they_are_alone(tiny: InferenceEngine) -> None:
    [first, second] = new_prompts(2)
    batch, seeds = [first, second, first, first, second], [*range(5)]
    asked: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12}
    together = tiny.generate(batch, seed=seeds, **asked)
    for prompt, seed, row in zip(batch, seeds, together, strict=True):
        [alone] = tiny.generate(prompt, seed=seed, **asked)
        assert row.token_ids == alone.token_ids
        assert row.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    assert len({tuple(row.token_ids) for row in together}) == 5


def test_log_probs_of_equal_prompts_are_those_of_a_score(tiny: InferenceEngine) -> None:
    [prompt] = new_prompts(1)
    output = tiny.generate(prompt, n=3, temperature=1.0, max_tokens=4, prompt_logprobs=True)
    ids = prompt["prompt_token_ids"]
    [expected] = tiny.get_logprobs({"prompt_token_ids": ids[:1]}, [ids[1:]])
    for row in output:
        assert row.prompt_logprobs[0] is None
        assert row.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-4)


def test_rows_of_equal_prompts_end_alone(tiny: InferenceEngine) -> None:
    """A stop token of one row; the others go on."""
    [prompt] = new_prompts(1)
    lengths = [1, 30, 2, 17]
    output = tiny.generate([prompt] * 4, max_tokens=lengths, temperature=1.0, ignore_eos=True)
    assert [len(ids) for ids in output.token_ids] == lengths
