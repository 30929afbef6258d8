"""`score`, `get_logprobs` and `prompt_logprobs`: scores equal Transformers'."""

from __future__ import annotations

import asyncio

import pytest

from inf import ConfigError, InferenceEngine, PromptError, Score
from tests.support.prompts import PROMPTS
from tests.support.reference import Reference, ids_of, logprobs
from tests.support.refusals import refused
from tests.support.tiny import VOCABULARY


def test_scores_of_text_equal_transformers(engine, reference):
    answers = ["Paris.", "I do not know, sorry!", "数 and 😀\n"]
    scores = engine.get_logprobs(PROMPTS[:3], answers)
    for prompt, answer, score in zip(PROMPTS[:3], answers, scores, strict=True):
        ids = engine.tokenizer(answer, add_special_tokens=False)["input_ids"]
        expected = logprobs(reference.logits(ids_of(engine, prompt), ids), ids)
        assert score == pytest.approx(expected, abs=1e-3)


def test_a_long_response_is_scored_whole(engine, reference):
    answer = " ".join(f"word{i}" for i in range(150))
    ids = engine.tokenizer(answer, add_special_tokens=False)["input_ids"]
    assert len(ids) > 400
    (score,) = engine.get_logprobs("Say many words.", answer)
    expected = logprobs(reference.logits(ids_of(engine, "Say many words."), ids), ids)
    assert score == pytest.approx(expected, abs=1e-3)


# ── Greedy or not, on a model whose greedy answers wander ────────────────────────────────────────


@pytest.fixture(scope="module")
def wanderer(tiny):
    return Reference.of(tiny)


def test_greedy_is_what_transformers_argmax_says_token_by_token(tiny, wanderer):
    """Every beginning of an answer that leaves the greedy path once: greedy up to there."""
    prompt = ids_of(tiny, "Count.")
    answer = tiny.generate({"prompt_token_ids": prompt}, max_tokens=10, temperature=0).token_ids[0]
    answer = [*answer[:5], 7, *answer[5:]]
    beginnings = [answer[:size] for size in range(1, len(answer) + 1)]
    likeliest = wanderer.logits(prompt, answer).argmax(dim=-1).tolist()
    assert likeliest[:5] == answer[:5] and likeliest[5] != 7
    scored = tiny.score([{"prompt_token_ids": prompt}] * len(beginnings), beginnings)
    assert [each.is_greedy for each in scored] == [
        likeliest[: len(ids)] == ids for ids in beginnings
    ]
    expected = logprobs(wanderer.logits(prompt, answer), answer)
    assert scored[-1].logprobs == pytest.approx(expected, abs=1e-3)


def test_scores_among_generated_rows_are_the_same(tiny):
    answered = tiny.generate(PROMPTS[:12], max_tokens=24, temperature=0)
    alone = tiny.score(PROMPTS[:12], answered.token_ids)

    async def together():
        rows = tiny.agenerate(PROMPTS[:12], n=4, max_tokens=60, temperature=1.0)
        scored = asyncio.to_thread(tiny.score, PROMPTS[:12], answered.token_ids)
        return (await asyncio.gather(rows, *[scored]))[1]

    for score, other in zip(asyncio.run(together()), alone, strict=True):
        assert score.is_greedy and score.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_only_prompt_and_response_together_have_a_limit(tiny, wanderer):
    """`prompt_length` is 512: a prompt that `generate` answers, not one that is scored."""
    prompt = [5 + place % 300 for place in range(600)]
    asked, answer = {"prompt_token_ids": prompt}, list(range(40, 80))
    (scored,) = tiny.score(asked, [answer])
    expected = logprobs(wanderer.logits(prompt, answer), answer)
    assert scored.logprobs == pytest.approx(expected, abs=1e-3)
    for call in (tiny.score, tiny.get_logprobs):
        with pytest.raises(PromptError, match="^prompt 1 has 600 tokens; .* 641, above .* 640"):
            call(["a", asked], [[5], [*answer, 5]])
    assert tiny.score(["a", "b"], [[5], []])[1] == Score([], [], True) and tiny.score([], []) == []


def test_log_probs_that_memory_cannot_hold_are_refused(tiny: InferenceEngine) -> None:
    prompts = [{"prompt_token_ids": [5, 6, 7]}] * 1000
    for name in ("logprobs", "prompt_logprobs"):
        with refused(ConfigError, "GiB of memory are free; ask for fewer", key=name):
            tiny.generate(prompts, n=10_000, temperature=1.0, max_tokens=100, **{name: -1})
    [row] = tiny.generate(prompts[:1], max_tokens=3, ignore_eos=True, logprobs=-1)
    assert [len(top) for top in row.top_logprobs or ()] == [VOCABULARY] * 3


def test_prompt_logprobs_equal_transformers_and_begin_with_none(engine, reference):
    output = engine.generate(PROMPTS[:4], max_tokens=2, temperature=0.7, prompt_logprobs=True, n=2)
    for index, scores in enumerate(output.prompt_logprobs):
        ids = ids_of(engine, PROMPTS[index // 2])
        expected = logprobs(reference.logits(ids[:1], ids[1:]), ids[1:])
        assert scores[0] is None
        assert scores[1:] == pytest.approx(expected, abs=1e-3)
    assert engine.generate("a", max_tokens=1).prompt_logprobs is None
