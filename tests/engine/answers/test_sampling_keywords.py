"""Repetition penalties, stop strings and seeds on the real engine.

What the keywords become is tested in `tests/request/test_sampling.py`; what all backends do alike
with them in `test_backends.py`.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from inf import InferenceEngine
from tests.support.prompts import PROMPTS
from tests.support.reference import Reference, ids_of, logprobs

SHORT = PROMPTS[:8]
SAMPLED: dict[str, Any] = {"temperature": 1.0, "max_tokens": 12}


def test_repetition_penalty_and_its_log_probs_equal_transformers_and_count_the_prompt(
    engine: InferenceEngine, reference: Reference
) -> None:
    ours = engine.generate(SHORT, repetition_penalty=1.3, max_tokens=20)
    processor = RepetitionPenaltyLogitsProcessor(1.3)
    for prompt, row in zip(SHORT, ours, strict=True):
        ids = ids_of(engine, prompt)
        logits = reference.logits(ids, row.token_ids)
        for place in range(len(row.token_ids)):
            before = torch.tensor([ids + row.token_ids[:place]])
            logits[place] = processor(before, logits[place][None].clone())[0]
        assert logits.argmax(-1).tolist() == row.token_ids
        assert row.logprobs == pytest.approx(logprobs(logits, row.token_ids), abs=1e-3)
    assert ours.token_ids != engine.generate(SHORT, max_tokens=20).token_ids


def test_of_several_stop_strings_the_first_to_come_wins_and_an_emoji_is_one(
    engine: InferenceEngine,
) -> None:
    whole = engine.generate(SHORT[0], max_tokens=48).completions[0]
    early, late = whole[2:5], whole[7:12]
    row = engine.generate(SHORT[0], max_tokens=48, stop=[late, early, "never this"])[0]
    assert row.metadata["matched_stop"] == early
    assert row.completion == whole[: whole.index(early)]
    said = "Hello 😀 there"  # a regex makes the model say it
    row = engine.generate("Repeat", regex=said, stop="😀", max_tokens=20)[0]
    assert (row.completion, row.metadata["matched_stop"]) == ("Hello ", "😀")


@pytest.mark.parametrize("asked", [{"prompts": [SHORT[0]] * 4}, {"prompts": SHORT[0], "n": 4}])
def test_one_seed_gives_equal_prompts_and_samples_answers_that_differ_and_come_again(
    tiny: InferenceEngine, asked: dict[str, Any]
) -> None:
    output = tiny.generate(**asked, seed=11, **SAMPLED)
    seeds = [row["seed"] for row in output.metadata]
    assert len({tuple(ids) for ids in output.token_ids}) == len(set(seeds)) == 4
    assert seeds[0] == 11
    last = tiny.generate(SHORT[0], seed=seeds[3], **SAMPLED)
    assert last.token_ids[0] == output.token_ids[3]
    assert tiny.generate(**asked, seed=11, **SAMPLED).token_ids == output.token_ids
    assert tiny.generate(SHORT[0], seed=2, **SAMPLED).token_ids[0] != output.token_ids[0]
