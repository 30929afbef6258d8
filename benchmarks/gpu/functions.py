"""What an engine does besides answering, each by itself, on one engine in bfloat16.

A check that fails is followed by a new start of the engine if it no longer answers as at first.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from typing import Any

from results import Skip
from setting import (
    GREEDY,
    PROMPTS,
    Setting,
    absent,
    answer,
    goes_idle,
)

GRAPHS = "rollout.enforce_eager=false"
CACHED = "rollout.enable_prefix_caching=false"  # a cached prefix is computed otherwise
SAMPLED: dict[str, Any] = {"temperature": 1.0, "max_tokens": 16, "progress": False, "timeout": 60}
LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True, "progress": False}
FILTERS: list[dict[str, Any]] = [
    {"top_k": 5},
    {"top_p": 0.5},
    {"min_p": 0.2},
    {"top_k": 20, "top_p": 0.9, "min_p": 0.05},
]
LIKELIEST = 1000
REGEX = r"(?:[a-c]{2} ?){1,5}!"
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b", 3]},
        "size": {"type": "integer", "minimum": 5, "maximum": 107},
    },
    "required": ["kind", "size"],
}
FIRST, SECOND = 1000, 2000  # ids that are in no prompt


def engine_starts_with_graphs(setting: Setting) -> Any:
    return started(setting, GRAPHS, CACHED)


def engine_starts_without_graphs(setting: Setting) -> Any:
    return started(setting, "rollout.enforce_eager=true", CACHED)


def started(setting: Setting, *keys: str) -> Any:
    if setting.running is not None:
        raise Skip("the engine of an earlier check runs")
    start = time.monotonic()
    setting.start(*keys)
    return {"seconds_to_first_answer": round(time.monotonic() - start, 1)}


def answers_match_their_regex(setting: Setting) -> Any:
    return {"texts": constrained(setting, lambda text: re.fullmatch(REGEX, text), regex=REGEX)}


def answers_match_their_schema(setting: Setting) -> Any:
    import jsonschema

    def matches(text: str) -> bool:
        jsonschema.validate(json.loads(text), SCHEMA)
        return True

    return {"texts": constrained(setting, matches, json_schema=SCHEMA)}


def constrained(setting: Setting, matches: Any, **grammar: Any) -> list[str]:
    """Texts of rows with a grammar, in one batch with rows that have none."""
    if absent("llguidance"):
        raise Skip("the kit has no llguidance, which computes what a grammar allows")
    every = {name: [value, None] * len(PROMPTS) for name, value in grammar.items()}
    prompts = [prompt for prompt in PROMPTS for _ in range(2)]
    output = setting.engine().generate(prompts, **every, **{**SAMPLED, "max_tokens": 60}, seed=3)
    bound, free = list(output)[::2], list(output)[1::2]
    for row in bound:
        assert row.metadata["finish_reason"] == "stop", row
        assert matches(row.completion), row.completion
    assert any(max(row.token_ids) > 384 for row in free), "a row without a grammar was held to one"
    return [row.completion for row in bound]


def tokens_are_drawn_from_the_mask_of_the_filters(setting: Setting) -> Any:
    engine, report = setting.engine(), {}
    for filters in FILTERS:
        output = engine.generate(PROMPTS, n=4, sampling_mask=True, **SAMPLED, **filters)
        kept, shares = [], []
        for row in output:
            for token, mask in zip(row.token_ids, row.sampling_mask, strict=True):
                assert token in mask, f"{filters}: {token} was drawn and is not in its mask"
                kept.append(len(mask))
            shares += agreement(engine, row, filters)
        assert max(kept) <= filters.get("top_k", max(kept)), f"{filters}: {max(kept)} tokens left"
        agree = statistics.mean(shares)
        assert agree >= 0.9, f"{filters}: masks agree with the filters' definition to {agree}"
        report[str(filters)] = {"kept": statistics.mean(kept), "agree": round(agree, 3)}
    return report


def agreement(engine: Any, row: Any, filters: dict[str, Any]) -> list[float]:
    """Per token, the share of ids that are both in its mask and left by the filters' definition."""
    prompt = PROMPTS[row.metadata["prompt_index"]]
    [score] = engine.score([prompt], [row.token_ids], top_logprobs=LIKELIEST)
    shares = []
    for mask, top in zip(row.sampling_mask, score.top_logprobs, strict=True):
        if len(mask) > LIKELIEST // 2:
            continue  # so many that the definition may leave more than are known here
        ranked = sorted(top.items(), key=lambda each: -each[1])[: filters.get("top_k", LIKELIEST)]
        left, before = set(), 0.0
        for token, logprob in ranked:
            if before <= filters.get("top_p", 1.0) and logprob - ranked[0][1] >= math.log(
                filters.get("min_p", 1e-9)
            ):
                left.add(token)
            before += math.exp(logprob)
        shares.append(len(left & set(mask)) / len(left | set(mask)))
    return shares


def seeds_give_the_same_tokens_twice(setting: Setting) -> Any:
    engine = setting.engine()
    rows = [[seeded(engine, prompt, 7) for prompt in PROMPTS] for _ in range(2)]
    assert rows[0] == rows[1], "another answer from the same seed"
    assert seeded(engine, PROMPTS[0], 8) != rows[0][0], "the same answer from another seed"
    batches = [timed(setting, seed=7) for _ in range(2)]
    same = statistics.mean(a == b for a, b in zip(*(ids for ids, _ in batches), strict=True))
    _, plain = timed(setting)
    steps = {"ms_a_step": plain, "ms_a_step_with_seeds": batches[1][1]}
    return {"rows_of_a_batch_that_come_again": same, **steps}  # promised in float32 on a CPU only


def timed(setting: Setting, **sampling: Any) -> tuple[list[list[int]], float]:
    """The ids of a batch, and milliseconds per token of its rows: 256 on a GPU."""
    prompts = PROMPTS * (64 if setting.on_gpu else 2)
    start = time.monotonic()
    output = setting.engine().generate(prompts, ignore_eos=True, **SAMPLED, **sampling)
    return output.token_ids, round((time.monotonic() - start) / SAMPLED["max_tokens"] * 1000, 1)


def seeded(engine: Any, prompt: str, seed: int) -> list[int]:
    ids: list[int] = engine.generate(prompt, seed=seed, top_p=0.9, **SAMPLED).token_ids[0]
    return ids


def penalties_change_the_logits_as_defined(setting: Setting) -> Any:
    """A bias makes one token win each time, so that all runs have the same context."""
    engine, size = setting.engine(), 1.5
    biased = {FIRST: 100, SECOND: 60}
    bias: dict[str, Any] = {"logit_bias": biased, "logprobs": 2, **GREEDY, "max_tokens": 6}
    gaps = {}
    for name in ("temperature", "presence_penalty", "frequency_penalty"):
        penalty = {} if name == "temperature" else {name: size}
        [row] = engine.generate(PROMPTS[0], **bias, **penalty)
        assert row.token_ids == [FIRST] * 6, row.token_ids
        gaps[name] = [top[FIRST] - top[SECOND] for top in row.top_logprobs]
    for step, plain in enumerate(gaps.pop("temperature")):
        expected = {
            "presence_penalty": plain - size * min(step, 1),
            "frequency_penalty": plain - size * step,
        }
        for name, gap in expected.items():
            assert abs(gaps[name][step] - gap) < 0.05, f"{name}, token {step}: {gaps}, not {gap}"
    other: dict[str, Any] = {"logit_bias": {FIRST: 100, SECOND: 72}, **GREEDY, "max_tokens": 4}
    [row] = engine.generate(PROMPTS[0], repetition_penalty=2.0, **other)
    assert row.token_ids == [FIRST, SECOND, FIRST, FIRST], f"repetition_penalty: {row.token_ids}"
    (_, plain), (_, penalized) = timed(setting), timed(setting, repetition_penalty=1.1)
    return {"ms_a_step": plain, "ms_a_step_with_repetition_penalty": penalized, "gaps": gaps}


def stops_and_lengths_end_rows_where_they_say(setting: Setting) -> Any:
    engine = setting.engine()
    [free] = engine.generate(PROMPTS[0], **GREEDY)
    text = free.completion[len(free.completion) // 2 :][:4]
    [row] = engine.generate(PROMPTS[0], **GREEDY, stop=["zzzz", text])
    assert row.completion == free.completion[: free.completion.find(text)], row
    assert row.metadata["matched_stop"] == text, row.metadata
    stop = free.token_ids[6]
    [row] = engine.generate(PROMPTS[0], **GREEDY, stop_token_ids=[stop])
    assert row.token_ids == free.token_ids[: free.token_ids.index(stop) + 1], row
    [row] = engine.generate(PROMPTS[0], **GREEDY, stop_token_ids=[stop], min_tokens=12)
    assert stop not in row.token_ids[:11] and len(row.token_ids) >= 12, row
    lengths = [1, 5, 9, 13]
    output = engine.generate(PROMPTS, **{**GREEDY, "max_tokens": lengths})
    assert [len(ids) for ids in output.token_ids] == lengths, output.token_ids
    return {"text": free.completion}


def call_over_its_timeout_is_aborted_and_the_engine_goes_on(setting: Setting) -> Any:
    from inf import GenerationTimeout

    engine = setting.engine()
    start = time.monotonic()
    try:
        engine.generate(PROMPTS * 16, **LONG, timeout=0.5)
        raise AssertionError("3,000 tokens of 64 rows came within half a second")
    except GenerationTimeout:
        seconds = round(time.monotonic() - start, 2)
    assert goes_idle(engine), "its requests are still in the engine"
    assert answer(engine) == setting.first, "another answer after it"
    return {"seconds": seconds}


def stream_is_the_call_and_ends_when_it_is_closed(setting: Setting) -> Any:
    engine = setting.engine()
    for sampling in (GREEDY, {**SAMPLED, "seed": 4}):
        [row] = engine.generate(PROMPTS[1], **sampling)
        chunks = list(engine.stream(PROMPTS[1], **sampling))
        assert [token for chunk in chunks for token in chunk.token_ids] == row.token_ids, row
        assert "".join(chunk.text for chunk in chunks) == row.completion, row
    stream = engine.stream(PROMPTS[1], **LONG)
    next(stream)
    stream.close()
    assert goes_idle(engine), "a closed stream's request is still in the engine"
    return {"chunks": len(chunks)}


CHECKS = (
    engine_starts_with_graphs,
    engine_starts_without_graphs,
    answers_match_their_regex,
    answers_match_their_schema,
    tokens_are_drawn_from_the_mask_of_the_filters,
    seeds_give_the_same_tokens_twice,
    penalties_change_the_logits_as_defined,
    stops_and_lengths_end_rows_where_they_say,
    call_over_its_timeout_is_aborted_and_the_engine_goes_on,
    stream_is_the_call_and_ends_when_it_is_closed,
)
