"""`score`, `get_logprobs` and `prompt_logprobs`: scores of text, their limits, in any company.

That scores, and those of prompts, are Transformers' on every backend: `test_backends.py`.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from inf import ConfigError, PromptError, Score
from tests.support.prompts import PROMPTS
from tests.support.reference import ids_of, logprobs
from tests.support.refusals import refused
from tests.support.tiny import VOCABULARY


def test_scores_of_text_equal_transformers(tiny, transformers):
    answers = ["Paris.", "I do not know, sorry!", "数 and 😀\n"]
    scores = tiny.get_logprobs(PROMPTS[:3], answers)
    for prompt, answer, score in zip(PROMPTS, answers, scores, strict=False):
        ids = tiny.tokenizer(answer, add_special_tokens=False)["input_ids"]
        expected = logprobs(transformers.logits(ids_of(tiny, prompt), ids), ids)
        assert score == pytest.approx(expected, abs=1e-3)


def test_scores_among_generated_rows_are_the_same(tiny):
    answered = tiny.generate(PROMPTS[:12], max_tokens=24, temperature=0)
    alone = tiny.score(PROMPTS[:12], answered.token_ids)

    async def together() -> Any:
        rows = tiny.agenerate(PROMPTS[:12], n=4, max_tokens=60, temperature=1.0)
        scored = asyncio.to_thread(tiny.score, PROMPTS[:12], answered.token_ids)
        return (await asyncio.gather(rows, *[scored]))[1]

    for score, other in zip(asyncio.run(together()), alone, strict=True):
        assert score.is_greedy and score.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_only_prompt_and_response_together_have_a_limit(tiny, transformers):
    """`prompt_length` is 512: prompts that `generate` answers, not those that are scored."""
    for size in (600, 100):  # and an answer of any length
        ids = [5 + place % 300 for place in range(640)]
        prompt, answer = ids[:size], ids[size:]
        (scored,) = tiny.score({"prompt_token_ids": prompt}, [answer])
        expected = logprobs(transformers.logits(prompt, answer), answer)
        assert scored.logprobs == pytest.approx(expected, abs=1e-3)
    asked = ["a", {"prompt_token_ids": ids[:600]}]
    for call in (tiny.score, tiny.get_logprobs):
        with pytest.raises(PromptError, match="^prompt 1 has 600 tokens; .* 641, above .* 640"):
            call(asked, [[5], [5] * 41])
    assert tiny.score(["a", "b"], [[5], []])[1] == Score([], [], True)


def test_log_probs_that_memory_cannot_hold_are_refused(tiny):
    prompts = [{"prompt_token_ids": [5, 6, 7]}] * 1000
    for name in ("logprobs", "prompt_logprobs"):
        with refused(ConfigError, "GiB of memory are free; ask for fewer", key=name):
            tiny.generate(prompts, n=10_000, temperature=1.0, max_tokens=100, **{name: -1})
    [row] = tiny.generate(prompts[:1], max_tokens=3, ignore_eos=True, logprobs=-1)
    assert [len(top) for top in row.top_logprobs] == [VOCABULARY] * 3
