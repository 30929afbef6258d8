"""`get_logprobs` and `prompt_logprobs`: scores equal Transformers'."""

from __future__ import annotations

import pytest
from prompts import PROMPTS
from reference import Reference, logprobs

from inf import PromptError


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


def test_scores_of_a_batch_of_100_equal_what_generate_said(engine):
    prompts = [f"{PROMPTS[i % 5]} ({i})" for i in range(100)]
    output = engine.generate(prompts, max_tokens=8)
    scores = engine.get_logprobs(prompts, output.token_ids)
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
