"""`score`, `get_logprobs` and `prompt_logprobs`: scores equal Transformers'."""

from __future__ import annotations

import asyncio
import random

import pytest

from inf import PromptError, Score
from tests.support.prompts import PROMPTS
from tests.support.reference import Reference, logprobs
from tests.support.tiny import VOCABULARY


@pytest.fixture(scope="module")
def reference(engine):
    return Reference.of(engine)


def ids_of(engine, prompt):
    message = [{"role": "user", "content": prompt}]
    text = engine.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return engine.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_scores_of_text_equal_transformers(engine, reference):
    answers = ["Paris.", "I do not know, sorry!", "数 and 😀\n"]
    scores = engine.get_logprobs(PROMPTS[:3], answers)
    for prompt, answer, score in zip(PROMPTS[:3], answers, scores, strict=True):
        ids = engine.tokenizer(answer, add_special_tokens=False)["input_ids"]
        expected = logprobs(reference.logits(ids_of(engine, prompt), ids), ids)
        assert score == pytest.approx(expected, abs=1e-3)


def test_scores_of_a_batch_of_100_equal_the_log_probs_of_generate(tiny):
    prompts = [f"{PROMPTS[i % 5]} ({i})" for i in range(100)]
    output = tiny.generate(prompts, max_tokens=8)
    scores = tiny.get_logprobs(prompts, output.token_ids)
    for said, scored in zip(output.logprobs, scores, strict=True):
        assert scored == pytest.approx(said, abs=1e-3)


def test_a_long_response_is_scored_whole(engine, reference):
    answer = " ".join(f"word{i}" for i in range(300))
    ids = engine.tokenizer(answer, add_special_tokens=False)["input_ids"]
    assert len(ids) > 900
    (score,) = engine.get_logprobs("Say many words.", answer)
    expected = logprobs(reference.logits(ids_of(engine, "Say many words."), ids), ids)
    assert score == pytest.approx(expected, abs=1e-3)


def test_scores_do_not_depend_on_what_the_prefix_cache_holds(engine):
    first = engine.get_logprobs("Say hello.", "Hello there, friend.")
    engine.generate("Say hello.", max_tokens=8)
    assert engine.get_logprobs("Say hello.", "Hello there, friend.")[0] == pytest.approx(
        first[0], abs=1e-4
    )


def test_an_empty_response_has_no_scores(engine):
    assert engine.get_logprobs(["a", "b"], ["", "x"])[0] == []
    assert engine.get_logprobs([], []) == []


# ── Greedy or not, on a model whose greedy answers wander ────────────────────────────────────────


@pytest.fixture(scope="module")
def wanderer(tiny):
    return Reference.of(tiny)


def greedy_answers(tiny):
    return tiny.generate(PROMPTS[:12], max_tokens=24, temperature=0)


def test_greedy_answers_are_greedy_and_changed_ones_are_not(tiny):
    answered = greedy_answers(tiny)
    same = tiny.score(PROMPTS[:12], answered.token_ids)
    assert all(each.is_greedy for each in same)
    dice, changed = random.Random(0), []
    for row, ids in enumerate(answered.token_ids):
        place = {0: 0, 1: len(ids) - 1}.get(row, dice.randrange(len(ids)))
        changed.append([*ids[:place], (ids[place] + 1) % VOCABULARY, *ids[place + 1 :]])
    other = tiny.score(PROMPTS[:12], changed)
    assert not any(each.is_greedy for each in other)
    for score, said in zip(same, answered.logprobs, strict=True):
        assert score.logprobs == pytest.approx(said, abs=1e-3)
    assert [each.token_ids for each in [*same, *other]] == [*answered.token_ids, *changed]


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
    answered = greedy_answers(tiny)
    alone = tiny.score(PROMPTS[:12], answered.token_ids)

    async def together():
        rows = tiny.agenerate(PROMPTS[:12], n=4, max_tokens=60, temperature=1.0)
        scored = asyncio.to_thread(tiny.score, PROMPTS[:12], answered.token_ids)
        return (await asyncio.gather(rows, *[scored]))[1]

    for score, other in zip(asyncio.run(together()), alone, strict=True):
        assert score.is_greedy and score.logprobs == pytest.approx(other.logprobs, abs=1e-3)


def test_log_probs_are_those_of_the_scores(tiny):
    answers = [[5, 6, 7], [383], []]
    scored = tiny.score(["a", "b", "c"], answers)
    for given, score in zip(tiny.get_logprobs(["a", "b", "c"], answers), scored, strict=True):
        assert given == pytest.approx(score.logprobs, abs=1e-4)
    assert scored[2] == Score([], [], True)
    assert tiny.score([], []) == []


def test_only_prompt_and_response_together_have_a_limit(tiny, wanderer):
    """`prompt_length` is 512: a prompt that `generate` answers, not one that is scored."""
    prompt = [5 + place % 300 for place in range(600)]
    asked, answer = {"prompt_token_ids": prompt}, list(range(40, 80))
    (scored,) = tiny.score(asked, [answer])
    expected = logprobs(wanderer.logits(prompt, answer), answer)
    assert scored.logprobs == pytest.approx(expected, abs=1e-3)
    says = (
        "prompt 1 has 600 tokens; with the 41 of its response that is 641, above the limit of 640"
    )
    for call in (tiny.score, tiny.get_logprobs):
        with pytest.raises(PromptError, match=says):
            call(["a", asked], [[5], [*answer, 5]])
    with pytest.raises(PromptError, match="prompt 0 has 641 tokens; with the 0 of its response"):
        tiny.score({"prompt_token_ids": [5] * 641}, "")


def test_prompt_logprobs_equal_transformers_and_begin_with_none(engine, reference):
    output = engine.generate(PROMPTS[:4], max_tokens=2, temperature=0.7, prompt_logprobs=True, n=2)
    for index, scores in enumerate(output.prompt_logprobs):
        ids = ids_of(engine, PROMPTS[index // 2])
        expected = logprobs(reference.logits(ids[:1], ids[1:]), ids[1:])
        assert scores[0] is None
        assert scores[1:] == pytest.approx(expected, abs=1e-3)
    assert engine.generate("a", max_tokens=1).prompt_logprobs is None


@pytest.mark.parametrize(
    ("prompts", "responses"),
    [
        (["a", "b"], ["x"]),
        ("a", ["x", "y"]),
        ("a", [[10**9]]),
        ("a", [[True]]),
        ("a", [None]),
        ("a", None),
        ("a", [["x"]]),
        ("a", "word " * 3000),
    ],
)
def test_what_cannot_be_scored_is_refused(engine, prompts, responses):
    with pytest.raises(PromptError):
        engine.get_logprobs(prompts, responses)
