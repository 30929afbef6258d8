"""The engine computes what Transformers computes: picks, log probs, frequencies, in any company.

The embedded model on real prompts, a tiny one (whose answers wander through all its vocabulary)
where many tokens are wanted.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from inf import GenerationOutput
from tests.support.prompts import PROMPTS, as_ids, token_prompts
from tests.support.reference import (
    WITHIN,
    Transformers,
    assert_greedy,
    assert_same_rows,
    ids_of,
    logprobs,
    penalized,
)

TOKENS = 16
SAMPLING = [
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.05},
    {"temperature": 1.5, "min_p": 0.1},
]
PENALTIES = [(1.5, 0.0), (0.0, 0.8), (0.7, 0.4), (-0.5, -0.2)]
ROWS = 20
_chance = random.Random(11)
BIASES = [
    *({token: _chance.uniform(-20, 20) for token in _chance.sample(range(384), 30)}, None),
    *({"77": 100}, {token: -100 for token in range(200)}, None),
] * 4


# (a) Greedy picks.


def test_greedy_answers_and_their_logprobs_are_those_of_transformers(engine):
    """As text: the library renders and tokenizes."""
    texts = [*PROMPTS[:-4:3], PROMPTS[-1]]  # a third of them, and the longest
    answers = engine.generate(texts, temperature=0.0, max_tokens=TOKENS)
    ids = [ids_of(engine, text) for text in texts]
    assert_greedy(Transformers.of(engine.model_folder), ids, answers, TOKENS)


def test_greedy_answers_of_the_tiny_model_are_those_of_transformers(tiny, transformers):
    ids = token_prompts(100, 400, seed=1)
    assert_greedy(transformers, ids, tiny.generate(as_ids(ids), temperature=0.0), 128)


# (b) Log probs, and picks, under each keyword.


def filtered(probabilities: torch.Tensor, sampling: dict[str, Any]) -> torch.Tensor:
    """`probabilities` (rows x vocabulary) with 0 where top-k, top-p or min-p excludes a token.

    A hair wider than the filters are, so that a last bit at their edge is no failure.
    """
    values, order = probabilities.sort(dim=-1, descending=True)
    ranks = torch.arange(values.shape[-1])
    kept = ranks < sampling.get("top_k", len(ranks))
    kept = kept & (values.cumsum(-1) - values <= sampling.get("top_p", 1.0) + 1e-5)
    kept = kept & (values >= sampling.get("min_p", 0.0) * values[..., :1] * (1 - 1e-4))
    return torch.zeros_like(values).scatter(-1, order, values * kept)


def assert_computed(
    reference: Transformers,
    prompts: Sequence[list[int]],
    output: GenerationOutput,
    asked: dict[str, Any],
) -> None:
    """Log probs are of the logits after bias and penalties, over the temperature, before the
    filters; a greedy pick is the likeliest of these, a sampled one passes the filters."""
    temperature, repetition = asked.get("temperature", 0.0), asked.get("repetition_penalty")
    presence, frequency = (asked.get(f"{name}_penalty", 0.0) for name in ("presence", "frequency"))
    biases = asked.get("logit_bias") or [None] * len(prompts)
    for prompt, row, bias in zip(prompts, output, biases, strict=True):
        ids = row.token_ids
        logits = reference.logits(prompt, ids).clone()
        for token, each in (bias or {}).items():
            logits[:, int(token)] += each
        for place in range(len(ids)) if repetition else ():
            processor = RepetitionPenaltyLogitsProcessor(repetition)
            seen = torch.tensor([prompt + ids[:place]])
            logits[place] = processor(seen, logits[place][None])[0]
        logits = penalized(logits, ids, presence=presence, frequency=frequency)
        expected = logprobs(logits, ids, temperature or 1.0)
        assert row.logprobs == pytest.approx(expected, rel=0, abs=WITHIN)
        total = row.metadata["cumulative_logprob"]
        assert total == pytest.approx(math.fsum(row.logprobs), abs=1e-6)
        places = torch.arange(len(ids)), torch.tensor(ids)
        if temperature == 0:
            assert (logits.max(-1).values - logits[places]).max() < WITHIN
        else:
            allowed = filtered(torch.softmax(logits / temperature, -1), asked)
            assert (allowed[places] > 0).all()


@pytest.mark.parametrize(
    "asked",
    [
        *({"temperature": temperature} for temperature in (0.0, 0.7)),
        *({"temperature": 0.7, **each} for each in ({"top_k": 1}, {"seed": 5})),
        *SAMPLING,
        *(
            {"temperature": temperature, "presence_penalty": one, "frequency_penalty": other}
            for temperature in (0.0, 0.7)
            for one, other in PENALTIES
        ),
        *(
            {"temperature": temperature, "logit_bias": BIASES, **repetition}
            for temperature in (0.0, 0.7)
            for repetition in ({}, {"repetition_penalty": 1.3})
        ),
    ],
    ids=lambda asked: " ".join(f"{k} {v}" for k, v in asked.items() if k != "logit_bias"),
)
def test_tokens_and_logprobs_are_those_that_the_keywords_define(tiny, transformers, asked):
    ids = token_prompts(ROWS, 100, seed=2)
    output = tiny.generate(as_ids(ids), max_tokens=48, ignore_eos=True, **asked)
    assert_computed(transformers, ids, output, asked)


# (c) Frequencies.


def assert_follows(output: GenerationOutput, probabilities: torch.Tensor) -> None:
    """Chi-square of first tokens; those expected fewer than five times are counted with the
    rarest of the others. Unseeded draws have no other test; right ones fail this one once in ten
    million runs."""
    from scipy.stats import chisquare  # which takes a second to import

    counts = Counter(answer[0] for answer in output.token_ids)
    expected = probabilities.double() / probabilities.double().sum() * counts.total()
    impossible = [token for token in counts if expected[token] == 0]
    assert not impossible, impossible
    common = [t for t in expected.argsort(descending=True).tolist() if expected[t] >= 5]
    assert len(common) > 2, "the prompt is too sure of its answer to show anything"
    due = [expected[token].item() for token in common]
    seen = [counts.pop(token, 0) for token in common]
    seen[-1] += counts.total()
    due[-1] += expected.sum().item() - sum(due)
    assert chisquare(seen, due).pvalue > 1e-7


@pytest.mark.parametrize(
    "sampling",
    [*({"temperature": t} for t in (1.0, 2.0)), {"temperature": 1.0, "seed": 3}, *SAMPLING],
)
def test_tokens_come_as_often_as_temperature_and_filters_say(tiny, transformers, sampling):
    [ids] = token_prompts(1, 40, seed=5)
    output = tiny.generate({"prompt_token_ids": ids}, n=800, max_tokens=1, **sampling)
    logits = transformers.logits(ids, [0]) / sampling["temperature"]
    assert_follows(output, filtered(torch.softmax(logits, -1), sampling)[0])


# (d) Company.


def test_an_answer_does_not_depend_on_its_place_or_company(tiny):
    ids = as_ids(token_prompts(40, 300, seed=7))
    together = tiny.generate(ids, temperature=0.0, max_tokens=48)
    shuffled = random.Random(0).sample(range(40), 40)
    for rows in (
        *([row] for row in range(40)),
        *(shuffled, [*range(40)][::-1], [7] * 50, [1, 2, 1, 3, 1] * 60),
    ):
        again = tiny.generate([ids[row] for row in rows], temperature=0.0, max_tokens=48)
        assert_same_rows(again, [together[row] for row in rows])


@pytest.mark.verl
def test_a_cached_prefix_changes_nothing(tiny, transformers):
    ids = token_prompts(30, 300, seed=8, shortest=50)
    asked = {"temperature": 0.0, "max_tokens": 32, "ignore_eos": True}
    cold, warm = (tiny.generate(as_ids(ids), **asked) for _ in range(2))
    assert all(row["cached_tokens"] < 3 for row in cold.metadata)
    assert all(row["cached_tokens"] == row["prompt_tokens"] - 1 for row in warm.metadata)
    assert_same_rows(warm, cold)
    grown = [prompt + answer for prompt, answer in zip(ids, cold.token_ids, strict=True)]
    longer = tiny.generate(as_ids(grown), **asked)
    assert all(row["cached_tokens"] > 50 for row in longer.metadata)
    assert_computed(transformers, grown, longer, asked)


OWN = [dict.fromkeys(range(row, 384, 7), 8.0) if row % 2 else None for row in range(48)]


@pytest.mark.parametrize(
    "asked",
    [{"logit_bias": OWN}, {"presence_penalty": 1.5, "frequency_penalty": 0.5}],
    ids=["bias or none", "penalties"],
)
def test_rows_retracted_from_a_full_cache_keep_their_keywords(tiny, transformers, asked):
    """48 x 600 tokens do not fit: SGLang takes rows back while they are answered and begins anew
    with what they had said."""
    ids = token_prompts(48, 480, seed=10, shortest=460)
    output = tiny.generate(as_ids(ids), temperature=0.0, ignore_eos=True, **asked)
    assert_computed(transformers, ids, output, asked)


@pytest.mark.verl
def test_decoding_steps_of_the_embedded_model_are_recorded(engine):
    engine.generate(PROMPTS[:2], max_tokens=3, ignore_eos=True)
    log = engine.rollout.host.log.read_text()
    assert "Decoding steps of up to" in log and "are not recorded" not in log


@pytest.mark.verl
def test_weights_are_in_large_pages(engine):
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("this machine gives no process large pages")
    assert engine.rollout.host is not None
    smaps = Path(f"/proc/{engine.rollout.host.children[0].pid}/smaps_rollup").read_text()
    kilobytes = re.search(r"^AnonHugePages: +(\d+) kB$", smaps, re.MULTILINE)
    assert kilobytes is not None
    assert int(kilobytes[1]) > 0
