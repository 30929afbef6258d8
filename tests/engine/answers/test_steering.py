"""Stop strings, seeds, minimum lengths, penalties and lists of parameters, on the real engine."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from inf import ConfigError
from tests.support.prompts import PROMPTS
from tests.support.reference import Reference, logprobs

SHORT = PROMPTS[:8]


@pytest.fixture(scope="module")
def reference(engine):
    return Reference.of(engine)


def ids_of(engine, prompt):
    message = [{"role": "user", "content": prompt}]
    text = engine.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return engine.tokenizer(text, add_special_tokens=False)["input_ids"]


def steered(reference, ids, answer, processors):
    """The logits of each token of `answer`, after Transformers' own logits processors."""
    logits = reference.logits(ids, answer)
    for place in range(len(answer)):
        before = torch.tensor([ids + answer[:place]])
        logits[place] = LogitsProcessorList(processors)(before, logits[place][None].clone())[0]
    return logits


def assert_likeliest(logits, answer):
    """Token for token what Transformers would pick."""
    assert logits.argmax(-1).tolist() == answer


def test_min_tokens_equals_transformers_token_for_token(engine, reference):
    ours = engine.generate(SHORT, min_tokens=24, max_tokens=32)
    eos = sorted(engine._backend.model.eos_token_ids)
    for prompt, token_ids in zip(SHORT, ours.token_ids, strict=True):
        ids = ids_of(engine, prompt)
        processor = MinNewTokensLengthLogitsProcessor(len(ids), 24, eos, device="cpu")
        assert_likeliest(steered(reference, ids, token_ids, [processor]), token_ids)
        assert not set(token_ids[:-1]) & set(eos)
    assert min(map(len, ours.token_ids)) >= 24


def test_repetition_penalty_and_its_log_probs_equal_transformers_and_count_the_prompt(
    engine, reference
):
    ours = engine.generate(SHORT, repetition_penalty=1.3, max_tokens=32)
    processor = RepetitionPenaltyLogitsProcessor(1.3)
    for prompt, row in zip(SHORT, ours, strict=True):
        logits = steered(reference, ids_of(engine, prompt), row.token_ids, [processor])
        assert_likeliest(logits, row.token_ids)
        assert row.logprobs == pytest.approx(logprobs(logits, row.token_ids), abs=1e-3)
    assert ours.token_ids != engine.generate(SHORT, max_tokens=32).token_ids


def test_stop_strings_end_generation_across_token_boundaries(engine):
    free = engine.generate(SHORT, max_tokens=48)
    stops = [[text[len(text) // 2 :][:6]] for text in free.completions]
    stopped = engine.generate(SHORT, max_tokens=48, stop=stops)
    for index, (stop,) in enumerate(stops):
        whole = free.completions[index]
        row = stopped[index]
        assert row.completion == whole[: whole.index(stop)]
        assert row.metadata["matched_stop"] == stop
        assert row.metadata["finish_reason"] == "stop"
        assert row.token_ids == free.token_ids[index][: len(row.token_ids)]
        assert row.metadata["completion_tokens"] < free.metadata[index]["completion_tokens"]
        text_before = engine.tokenizer.decode(row.token_ids[:-1], skip_special_tokens=True)
        assert stop not in text_before


def test_of_several_stop_strings_the_first_to_come_wins(engine):
    whole = engine.generate(SHORT[0], max_tokens=48).completions[0]
    assert len(whole) > 12
    early, late = whole[2:5], whole[7:12]
    row = engine.generate(SHORT[0], max_tokens=48, stop=[late, early, "never this"])[0]
    assert row.metadata["matched_stop"] == early
    assert row.completion == whole[: whole.index(early)]


def test_an_emoji_is_a_stop_string(engine):
    ids = engine.tokenizer("Hello 😀 there", add_special_tokens=False)["input_ids"]
    prompt = "Repeat exactly: Hello 😀 there"
    # The model may not say it: a regex makes it.
    row = engine.generate(prompt, regex="Hello 😀 there", stop="😀", max_tokens=len(ids) + 4)[0]
    assert row.completion == "Hello "
    assert row.metadata["matched_stop"] == "😀"


def test_min_tokens_holds_stop_strings_off_too(engine):
    whole = engine.generate(SHORT[0], max_tokens=40).completions[0]
    row = engine.generate(SHORT[0], max_tokens=40, stop=whole[2:5], min_tokens=20)[0]
    assert row.metadata["completion_tokens"] >= 20
    assert row.completion.startswith(whole[:10])


SAMPLED = {"temperature": 1.0, "max_tokens": 12}


@pytest.mark.parametrize("filters", [{}, {"top_p": 0.9, "top_k": 30}, {"min_p": 0.05}])
def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch(tiny, filters):
    alone = tiny.generate(SHORT[0], seed=11, **SAMPLED, **filters)
    crowd = tiny.generate([*SHORT[1:], SHORT[0]], seed=[11] * 8, **SAMPLED, **filters)
    mixed = tiny.generate([SHORT[0], *SHORT[1:4]], seed=[11, None, 3, None], **SAMPLED, **filters)
    assert alone.token_ids[0] == crowd.token_ids[-1] == mixed.token_ids[0]
    assert alone.metadata[0]["seed"] == 11
    assert "seed" not in mixed.metadata[1]


def test_one_seed_for_all_gives_equal_prompts_different_answers_that_come_again(tiny):
    output = tiny.generate([SHORT[0]] * 4, seed=11, **SAMPLED)
    assert len({tuple(ids) for ids in output.token_ids}) == 4
    assert output.metadata[0]["seed"] == 11
    last = tiny.generate(SHORT[0], seed=output.metadata[3]["seed"], **SAMPLED)
    assert last.token_ids[0] == output.token_ids[3]
    assert tiny.generate([SHORT[0]] * 4, seed=11, **SAMPLED).token_ids == output.token_ids


def test_what_asks_for_sampling_samples_on_the_greedy_default(engine):
    for asked in ({"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.01}):
        output = engine.generate(SHORT[0], n=16, max_tokens=12, **asked)
        assert len({tuple(ids) for ids in output.token_ids}) > 1
    seeded = engine.generate(SHORT[0], n=4, seed=1, max_tokens=12)
    assert len({tuple(ids) for ids in seeded.token_ids}) == 4


def test_seeding_leaves_log_probs_untouched(engine, reference):
    output = engine.generate(SHORT[0], seed=5, temperature=0.7, top_p=0.9, max_tokens=16)
    answer = output.token_ids[0]
    logits = reference.logits(ids_of(engine, SHORT[0]), answer) / 0.7
    table = torch.log_softmax(logits, -1)
    for place, token in enumerate(answer):
        assert output.logprobs[0][place] == pytest.approx(table[place, token].item(), abs=1e-3)


def test_seeds_differ_and_samples_of_one_prompt_get_their_own(tiny):
    output = tiny.generate(SHORT[0], seed=1, n=4, **SAMPLED)
    seeds = [row.metadata["seed"] for row in output]
    assert len(set(seeds)) == 4 and seeds[0] == 1
    assert len({tuple(ids) for ids in output.token_ids}) == 4
    again = tiny.generate(SHORT[0], seed=seeds[2], **SAMPLED)
    assert again.token_ids[0] == output.token_ids[2]
    assert tiny.generate(SHORT[0], seed=2, **SAMPLED).token_ids[0] != output.token_ids[0]


def test_without_a_seed_answers_stay_random(tiny):
    output = tiny.generate([SHORT[0]] * 6, **SAMPLED)
    assert len({tuple(ids) for ids in output.token_ids}) > 1


def test_seeded_first_tokens_follow_the_models_distribution(engine, reference):
    logits = reference.logits(ids_of(engine, SHORT[0]), [0])[0]
    probs = torch.softmax(logits, -1)
    output = engine.generate([SHORT[0]] * 300, seed=list(range(300)), temperature=1.0, max_tokens=1)
    top = int(probs.argmax())
    share = sum(ids[0] == top for ids in output.token_ids) / 300
    spread = float((probs[top] * (1 - probs[top]) / 300).sqrt())
    assert abs(share - float(probs[top])) < 4.5 * spread


def test_each_prompt_may_have_its_own_parameters(tiny):
    output = tiny.generate(
        SHORT[:3],
        max_tokens=[3, 5, 7],
        temperature=[0.0, 0.7, None],
        stop_token_ids=[[], [10], []],
        min_tokens=[3, 5, 7],
        n=2,
    )
    assert [len(ids) for ids in output.token_ids] == [3, 3, 5, 5, 7, 7]
    greedy = tiny.generate(SHORT[:1], max_tokens=3, min_tokens=3, temperature=0)
    assert output.token_ids[0] == output.token_ids[1] == greedy.token_ids[0]


def test_a_list_of_another_length_is_refused_by_name(tiny):
    with pytest.raises(ConfigError, match=r"^max_tokens: a list of 2 values for 3 prompts"):
        tiny.generate(SHORT[:3], max_tokens=[1, 2])


def test_a_bad_value_in_a_list_names_its_prompt(tiny):
    with pytest.raises(ConfigError, match=r"^top_p: 2 .*\(prompt 1\)$"):
        tiny.generate(SHORT[:2], top_p=[0.5, 2])


def test_an_answer_that_ends_on_its_last_permitted_token_has_stopped(engine):
    free = engine.generate("What is the capital of France?", max_tokens=32)
    length = free.metadata[0]["completion_tokens"]
    exact = engine.generate("What is the capital of France?", max_tokens=length)
    assert free.metadata[0]["finish_reason"] == "stop"
    assert exact.metadata[0]["finish_reason"] == "stop"
    assert exact.completions == free.completions
