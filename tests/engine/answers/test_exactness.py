"""The engine computes what Transformers computes: picks, log probs, frequencies, in any company.

The embedded model on real prompts, a tiny one (whose answers wander through all its vocabulary)
where many tokens are wanted.
"""

from __future__ import annotations

import json
import math
import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import chisquare
from transformers import RepetitionPenaltyLogitsProcessor

from inf import ConfigError, GenerationOutput, GenerationRow, InferenceEngine
from tests.support.prompts import PROMPTS, as_ids, token_prompts
from tests.support.reference import (
    WITHIN,
    Reference,
    Transformers,
    assert_greedy,
    assert_same_answers,
    logprobs,
    penalized,
)
from tests.support.refusals import refused

TOKENS = 32
GSM8K = os.environ.get("INF_GSM8K")
SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 0.7, "top_k": 1},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05},
    {"temperature": 1.5, "min_p": 0.1},
]
PENALTIES = [(1.5, 0.0), (0.0, 0.8), (0.7, 0.4), (-0.5, -0.2)]


@pytest.fixture(scope="module")
def tiny_reference(tiny: InferenceEngine) -> Reference:
    """The tiny one."""
    return Reference.of(tiny)


def rendered(engine: InferenceEngine, texts: Sequence[str]) -> list[list[int]]:
    """Each text as one user message, by Transformers' own call."""
    return [
        engine.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in texts
    ]


@pytest.fixture(scope="module")
def prompts(engine: InferenceEngine) -> list[list[int]]:
    """The token ids of `PROMPTS`."""
    return rendered(engine, PROMPTS)


@pytest.fixture(scope="module")
def answers(engine: InferenceEngine) -> GenerationOutput:
    """Greedy, in one batch, as text: the library renders and tokenizes."""
    return engine.generate(PROMPTS, temperature=0.0, max_tokens=TOKENS)


# (a) Greedy picks.


def test_greedy_answers_and_their_logprobs_are_those_of_transformers(
    engine: InferenceEngine, prompts: list[list[int]], answers: GenerationOutput
) -> None:
    assert_greedy(Transformers.of(engine.model_folder), prompts, answers, TOKENS)


@pytest.mark.slow
@pytest.mark.skipif(not GSM8K, reason="INF_GSM8K does not name GSM8K's test.jsonl")
def test_greedy_answers_to_gsm8k_are_those_of_transformers(
    engine: InferenceEngine, reference: Reference
) -> None:
    lines = Path(str(GSM8K)).read_text(encoding="utf-8").splitlines()[:25]
    questions = [json.loads(line)["question"] for line in lines]
    ids = rendered(engine, questions)
    output = engine.generate(questions, temperature=0.0, max_tokens=2 * TOKENS)
    assert [row["prompt_tokens"] for row in output.metadata] == [len(each) for each in ids]
    assert_greedy(reference, ids, output, 2 * TOKENS)


def test_greedy_answers_of_the_tiny_model_are_those_of_transformers(
    tiny: InferenceEngine, tiny_reference: Reference
) -> None:
    ids = token_prompts(100, 400, seed=1)
    output = tiny.generate(as_ids(ids), temperature=0.0)
    assert_same_answers(tiny_reference, ids, output.token_ids, tiny_reference.greedy(ids, 128))


# (b) Log probs.


def assert_logprobs(
    reference: Reference,
    prompts: Sequence[list[int]],
    output: GenerationOutput,
    temperature: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> None:
    """Every token's, and their sum."""
    assert len(output) == len(prompts)
    for prompt, row in zip(prompts, output, strict=True):
        logits = reference.logits(prompt, row.token_ids)
        logits = penalized(logits, row.token_ids, presence=presence, frequency=frequency)
        expected = logprobs(logits, row.token_ids, temperature)
        assert row.logprobs == pytest.approx(expected, rel=0, abs=WITHIN)
        total = row.metadata["cumulative_logprob"]
        assert total == pytest.approx(math.fsum(row.logprobs), abs=1e-6)


@pytest.mark.parametrize("sampling", [*SAMPLING, {"temperature": 0.7, "seed": 5}], ids=str)
def test_filters_hold_and_logprobs_are_of_the_logits_over_temperature_before_them(
    tiny: InferenceEngine, tiny_reference: Reference, sampling: dict[str, Any]
) -> None:
    ids = token_prompts(40, 100, seed=2)
    output = tiny.generate(as_ids(ids), max_tokens=48, ignore_eos=True, **sampling)
    assert_logprobs(tiny_reference, ids, output, sampling["temperature"] or 1.0)
    if sampling["temperature"] == 0:
        return
    for prompt, answer in zip(ids, output.token_ids, strict=True):
        logits = tiny_reference.logits(prompt, answer)
        allowed = filtered(torch.softmax(logits / sampling["temperature"], -1), sampling)
        assert all(allowed[place, token] > 0 for place, token in enumerate(answer))


def filtered(probabilities: torch.Tensor, sampling: dict[str, Any]) -> torch.Tensor:
    """`probabilities` (rows x vocabulary) with 0 where top-k, top-p or min-p excludes a token.

    A hair wider than the filters are, so that a last bit at their edge is no failure.
    """
    values, order = probabilities.sort(dim=-1, descending=True)
    ranks = torch.arange(values.shape[-1])
    top_k = sampling.get("top_k", -1)
    kept = ranks < (top_k if top_k > 0 else len(ranks))
    kept = kept & (values.cumsum(-1) - values <= sampling.get("top_p", 1.0) + 1e-5)
    kept = kept & (values >= sampling.get("min_p", 0.0) * values[..., :1] * (1 - 1e-4))
    return torch.zeros_like(values).scatter(-1, order, values * kept)


@pytest.mark.parametrize(("presence", "frequency"), PENALTIES)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_penalties_count_generated_tokens_and_logprobs_show_them(
    tiny: InferenceEngine,
    tiny_reference: Reference,
    presence: float,
    frequency: float,
    temperature: float,
) -> None:
    ids = token_prompts(20, 60, seed=4)
    output = tiny.generate(
        as_ids(ids),
        temperature=temperature,
        presence_penalty=presence,
        frequency_penalty=frequency,
        ignore_eos=True,
    )
    assert_logprobs(tiny_reference, ids, output, temperature or 1.0, presence, frequency)
    if temperature == 0:
        assert_penalized_picks(tiny_reference, ids, output, presence, frequency)


def assert_penalized_picks(
    reference: Reference,
    prompts: Sequence[list[int]],
    output: GenerationOutput,
    presence: float,
    frequency: float,
) -> None:
    """Each token is the likeliest once the penalties are taken off."""
    for prompt, answer in zip(prompts, output.token_ids, strict=True):
        logits = reference.logits(prompt, answer)
        logits = penalized(logits, answer, presence=presence, frequency=frequency)
        picked = logits[torch.arange(len(answer)), torch.tensor(answer)]
        assert (logits.max(-1).values - picked).max() < WITHIN


# (b') Logit bias.


def assert_biased(
    reference: Reference,
    prompts: Sequence[list[int]],
    output: GenerationOutput,
    biases: Sequence[dict[int, float] | None],
    temperature: float,
    repetition: float = 1.0,
) -> None:
    """Log probs are of the logits with their bias, which came before the repetition penalty; greedy
    picks are the likeliest of these."""
    for prompt, row, bias in zip(prompts, output, biases, strict=True):
        logits = reference.logits(prompt, row.token_ids).clone()
        for token, each in (bias or {}).items():
            logits[:, token] += each
        for place in range(len(row.token_ids)):
            seen = torch.tensor([prompt + row.token_ids[:place]])
            if repetition != 1.0:
                processor = RepetitionPenaltyLogitsProcessor(repetition)
                logits[place] = processor(seen, logits[place][None])[0]
        expected = logprobs(logits, row.token_ids, temperature or 1.0)
        assert row.logprobs == pytest.approx(expected, rel=0, abs=WITHIN)
        if temperature == 0:
            picked = logits[torch.arange(len(row.token_ids)), torch.tensor(row.token_ids)]
            assert (logits.max(-1).values - picked).max() < WITHIN


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("repetition", [1.0, 1.3])
def test_logit_bias_is_added_before_all_else_and_only_to_its_own_rows(
    tiny: InferenceEngine, tiny_reference: Reference, temperature: float, repetition: float
) -> None:
    ids = token_prompts(12, 60, seed=11)
    chance = random.Random(11)
    biases = [
        {token: chance.uniform(-20, 20) for token in chance.sample(range(384), 30)}
        if row % 3 == 0
        else None
        for row in range(12)
    ]
    params: dict[str, Any] = {"max_tokens": 32, "ignore_eos": True, "temperature": temperature}
    params |= {"repetition_penalty": repetition, "seed": list(range(12))}
    output = tiny.generate(as_ids(ids), logit_bias=biases, **params)
    assert_biased(tiny_reference, ids, output, biases, temperature, repetition)
    without = tiny.generate(as_ids(ids), **params)
    for row in range(12):
        same = output.token_ids[row] == without.token_ids[row]
        assert same == (biases[row] is None)


def test_bias_of_100_forces_a_token_and_of_minus_100_bans_it(tiny: InferenceEngine) -> None:
    ids = token_prompts(6, 60, seed=12)
    free = tiny.generate(as_ids(ids), temperature=0, max_tokens=24, ignore_eos=True)
    first = [answer[0] for answer in free.token_ids]
    output = tiny.generate(
        as_ids([*ids, *ids]),
        logit_bias=[*({"77": 100} for _ in ids), *({token: -100} for token in first)],
        temperature=0,
        max_tokens=24,
        ignore_eos=True,
    )
    assert output.token_ids[:6] == [[77] * 24] * 6
    for token, answer in zip(first, output.token_ids[6:], strict=True):
        assert token not in answer


def test_grammar_holds_against_a_bias(tiny: InferenceEngine) -> None:
    wrong = tiny.tokenizer.encode("z", add_special_tokens=False)[0]
    [text] = tiny.generate(
        "a", regex="[ab]{3,9}", logit_bias={wrong: 100}, max_tokens=9
    ).completions
    assert set(text) <= set("ab") and len(text) >= 3


# (c) Frequencies.


def assert_follows(drawn: Sequence[int], probabilities: torch.Tensor) -> None:
    """Chi-square; tokens expected fewer than five times are counted together. Unseeded draws have
    no other test; right ones fail this one once in ten million runs."""
    expected = probabilities.double() / probabilities.double().sum() * len(drawn)
    counts = Counter(drawn)
    common = [token for token in range(len(expected)) if expected[token] >= 5]
    seen = [counts.pop(token, 0) for token in common]
    due = [expected[token].item() for token in common]
    impossible = [token for token in counts if expected[token] == 0]
    assert not impossible, impossible
    rest = len(drawn) - sum(due)
    if rest >= 5:
        seen, due = [*seen, sum(counts.values())], [*due, rest]
    else:  # too few even together: with the rarest of the others
        seen[due.index(min(due))] += sum(counts.values())
        due[due.index(min(due))] += rest
    assert len(due) > 2, "the prompt is too sure of its answer to show anything"
    assert chisquare(seen, due).pvalue > 1e-7


@pytest.mark.parametrize("seeded", [False, True])
def test_first_tokens_come_as_often_as_the_model_says(
    engine: InferenceEngine, reference: Reference, seeded: bool
) -> None:
    text = "Write the first sentence of a story."
    [ids] = rendered(engine, [text])
    seed = list(range(400)) if seeded else None
    output = engine.generate([text] * 400, seed=seed, max_tokens=1, temperature=1.0)
    probabilities = torch.softmax(reference.logits(ids, [0])[0], -1)
    assert_follows([answer[0] for answer in output.token_ids], probabilities)


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 1.0}, {"temperature": 2.0}, *SAMPLING[2:4], *SAMPLING[5:]],
    ids=str,
)
def test_tokens_come_as_often_as_temperature_and_filters_say(
    tiny: InferenceEngine, tiny_reference: Reference, sampling: dict[str, Any]
) -> None:
    [ids] = token_prompts(1, 40, seed=5)
    output = tiny.generate({"prompt_token_ids": ids}, n=800, max_tokens=1, **sampling)
    logits = tiny_reference.logits(ids, [0]) / sampling["temperature"]
    probabilities = filtered(torch.softmax(logits, -1), sampling)[0]
    assert_follows([answer[0] for answer in output.token_ids], probabilities)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_top_logprobs_are_transformers_likeliest_and_the_sampled_token(
    tiny: InferenceEngine, tiny_reference: Reference, temperature: float
) -> None:
    ids = token_prompts(10, 60, seed=12)
    output = tiny.generate(
        as_ids(ids), temperature=temperature, seed=1, max_tokens=16, ignore_eos=True, logprobs=3
    )
    assert output.top_logprobs is not None and output[0].top_logprobs == output.top_logprobs[0]
    rows = zip(ids, output.token_ids, output.logprobs, output.top_logprobs, strict=True)
    for prompt, answer, sampled, tops in rows:
        table = torch.log_softmax(tiny_reference.logits(prompt, answer) / (temperature or 1.0), -1)
        values, order = table.topk(3)
        for place, (token, logprob, top) in enumerate(zip(answer, sampled, tops, strict=True)):
            assert list(top)[:3] == order[place].tolist() and top[token] == logprob
            assert [*top.values()][:3] == pytest.approx(values[place].tolist(), abs=WITHIN)
            assert len(top) == 3 + (token not in order[place])
    assert json.loads(json.dumps(output.to_dict()))[0]["top_logprobs"][0]
    assert tiny.generate("a", max_tokens=2).top_logprobs is None
    with refused(ConfigError, key="logprobs"):
        tiny.generate("a", logprobs=385)
    with refused(ConfigError, key="prompt_logprobs"):
        tiny.stream("a", prompt_logprobs=True)


# (d) Company.


def assert_alike(some: Iterable[GenerationRow], others: Iterable[GenerationRow]) -> None:
    """Row for row the same tokens and, but for the last bits, the same log probs."""
    for one, other in zip(some, others, strict=True):
        assert (one.token_ids, one.completion) == (other.token_ids, other.completion)
        assert one.logprobs == pytest.approx(other.logprobs, rel=0, abs=WITHIN)


def test_an_answer_does_not_depend_on_its_place_or_company(tiny: InferenceEngine) -> None:
    ids = token_prompts(40, 300, seed=7)
    together = tiny.generate(as_ids(ids), temperature=0.0, max_tokens=48)
    for row, prompt in enumerate(ids):
        alone = tiny.generate(as_ids([prompt]), temperature=0.0, max_tokens=48)
        assert_alike(alone, [together[row]])
    shuffled = random.Random(0).sample(range(40), 40)
    for rows in (shuffled, [*range(40)][::-1], [7] * 50, [1, 2, 1, 3, 1] * 10):
        again = tiny.generate(as_ids([ids[row] for row in rows]), temperature=0.0, max_tokens=48)
        assert_alike(again, [together[row] for row in rows])


@pytest.mark.verl
def test_a_cached_prefix_changes_nothing(tiny: InferenceEngine, tiny_reference: Reference) -> None:
    ids = token_prompts(30, 300, seed=8, shortest=50)
    cold = tiny.generate(as_ids(ids), temperature=0.0, max_tokens=32, ignore_eos=True)
    warm = tiny.generate(as_ids(ids), temperature=0.0, max_tokens=32, ignore_eos=True)
    assert all(row["cached_tokens"] < 3 for row in cold.metadata)
    assert all(row["cached_tokens"] == row["prompt_tokens"] - 1 for row in warm.metadata)
    assert_alike(warm, cold)
    grown = [prompt + answer for prompt, answer in zip(ids, cold.token_ids, strict=True)]
    longer = tiny.generate(as_ids(grown), temperature=0.0, max_tokens=32, ignore_eos=True)
    assert all(row["cached_tokens"] > 50 for row in longer.metadata)
    assert_logprobs(tiny_reference, grown, longer)


def test_calls_with_other_parameters_at_the_same_time_change_nothing(
    tiny: InferenceEngine, tiny_reference: Reference
) -> None:
    ids = token_prompts(10, 60, seed=9)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.0, "presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 1.5, "frequency_penalty": 0.3},
    ]
    with ThreadPoolExecutor(len(kinds)) as threads:
        calls = [
            threads.submit(tiny.generate, as_ids(ids), ignore_eos=True, **kind) for kind in kinds
        ]
        outputs = [call.result(timeout=120) for call in calls]
    for kind, output in zip(kinds, outputs, strict=True):
        penalties = kind.get("presence_penalty", 0.0), kind.get("frequency_penalty", 0.0)
        assert_logprobs(tiny_reference, ids, output, kind["temperature"] or 1.0, *penalties)
        if kind["temperature"] == 0:
            assert_penalized_picks(tiny_reference, ids, output, *penalties)


# 48 x 600 tokens do not fit: SGLang takes rows back while they are answered and begins anew with
# what they had said.
TOO_MANY = token_prompts(48, 480, seed=10, shortest=460)


def test_rows_retracted_from_a_full_cache_keep_their_bias_or_have_none(
    tiny: InferenceEngine, tiny_reference: Reference
) -> None:
    biases = [dict.fromkeys(range(row, 384, 7), 8.0) if row % 2 else None for row in range(48)]
    output = tiny.generate(as_ids(TOO_MANY), temperature=0.0, ignore_eos=True, logit_bias=biases)
    assert_biased(tiny_reference, TOO_MANY, output, biases, 0.0)


def test_rows_retracted_from_a_full_cache_keep_their_penalties(
    tiny: InferenceEngine, tiny_reference: Reference
) -> None:
    penalties = {"presence_penalty": 1.5, "frequency_penalty": 0.5}
    output = tiny.generate(as_ids(TOO_MANY), temperature=0.0, ignore_eos=True, **penalties)
    assert_logprobs(tiny_reference, TOO_MANY, output, 1.0, 1.5, 0.5)
    assert_penalized_picks(tiny_reference, TOO_MANY, output, 1.5, 0.5)


@pytest.mark.verl
def test_decoding_steps_of_the_embedded_model_are_recorded(engine: InferenceEngine) -> None:
    engine.generate(PROMPTS[:2], max_tokens=3, ignore_eos=True)
    log = engine.rollout.host.log.read_text()
    assert "Decoding steps of up to" in log and "are not recorded" not in log
