"""Constrained answers of a real model: all that ended match, whatever was drawn."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from inf import GenerationOutput, InferenceEngine, InferenceError
from tests.support.grammars import REGEXES, SCHEMAS

ASK = "Write something about a red ball."
FORM = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["a", "b", 3]},
        "size": {"type": "integer", "minimum": 5, "maximum": 107},
        "day": {"type": "string", "format": "date"},
        "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["kind", "size", "day", "flags"],
}


def reasons(output: GenerationOutput) -> list[str]:
    return [row["finish_reason"] for row in output.metadata]


def test_answers_that_ended_match_their_schemas(tiny: InferenceEngine) -> None:
    schemas = [schema for schema, _, _ in SCHEMAS for _ in range(4)]
    rows = len(schemas)
    output = tiny.generate(
        [f"Give me example {n} of a short JSON value." for n in range(rows)],
        json_schema=schemas,
        temperature=1.0,
        max_tokens=128,
        seed=list(range(rows)),
    )
    for schema, text, reason in zip(schemas, output.completions, reasons(output), strict=True):
        if reason == "stop":
            jsonschema.validate(json.loads(text), schema)
    # A random model seldom closes what it has opened.
    assert reasons(output).count("stop") >= rows // 3
    assert set(reasons(output)) <= {"stop", "length"}


def test_answers_that_ended_match_their_regexes(engine: InferenceEngine) -> None:
    output = engine.generate(
        [ASK] * len(REGEXES), regex=REGEXES, temperature=1.0, max_tokens=96, seed=1
    )
    for regex, text, reason in zip(REGEXES, output.completions, reasons(output), strict=True):
        assert reason == "length" or re.fullmatch(regex, text), (regex, text)
    assert reasons(output).count("length") <= 2


def test_rows_without_a_grammar_are_what_they_are_alone(tiny: InferenceEngine) -> None:
    """Of different lengths, so that rows with and without one change places in the batch."""
    asks = [f"{ASK} {n}" for n in range(24)]
    lengths = [4 + 5 * (n % 7) for n in range(24)]
    sampling: dict[str, Any] = {"temperature": 1.0, "seed": list(range(24)), "ignore_eos": True}
    free = tiny.generate(asks, max_tokens=lengths, **sampling)
    regexes = [None if n % 3 else "[ab]{2,20}" for n in range(24)]
    mixed = tiny.generate(asks, max_tokens=lengths, regex=regexes, **sampling)
    for row, regex in enumerate(regexes):
        if regex is None:
            assert mixed.token_ids[row] == free.token_ids[row]
            assert mixed.logprobs[row] == pytest.approx(free.logprobs[row], abs=1e-4)
        else:
            assert set(mixed.completions[row]) <= set("ab")


def test_min_tokens_holds_the_end_off_as_long_as_the_grammar_can_go_on(
    tiny: InferenceEngine,
) -> None:
    sampling: dict[str, Any] = {"temperature": 1.0, "max_tokens": 40, "n": 8, "seed": 1}
    long = tiny.generate(ASK, regex="[ab]{2,}", min_tokens=20, **sampling)
    assert min(row["completion_tokens"] for row in long.metadata) >= 20
    full = tiny.generate(ASK, regex="[ab]{2,5}", min_tokens=20, **sampling)
    assert all(re.fullmatch("[ab]{2,5}", text) for text in full.completions)
    assert set(reasons(full)) == {"stop"}


def test_stop_strings_end_a_constrained_answer(tiny: InferenceEngine) -> None:
    output = tiny.generate(
        ASK, regex="[abc]+", stop="ca", n=8, temperature=1.0, seed=3, max_tokens=100
    )
    assert {row["matched_stop"] for row in output.metadata} <= {"ca", tiny.tokenizer.eos_token_id}
    assert any(row["matched_stop"] == "ca" for row in output.metadata)
    assert not any("ca" in text for text in output.completions)


def test_a_seed_gives_a_constrained_answer_again_alone_and_streamed(tiny: InferenceEngine) -> None:
    sampling: dict[str, Any] = {"json_schema": FORM, "temperature": 1.0, "max_tokens": 100}
    crowd = tiny.generate([ASK] * 6, seed=[5, 6, 7, 8, 9, 5], **sampling)
    assert crowd.token_ids[0] == crowd.token_ids[5]
    assert len({tuple(ids) for ids in crowd.token_ids}) == 5
    chunks = list(tiny.stream(ASK, seed=6, **sampling))
    assert [token for chunk in chunks for token in chunk.token_ids] == crowd.token_ids[1]
    assert "".join(chunk.text for chunk in chunks) == crowd.completions[1]
    assert chunks[-1].finish_reason == crowd.metadata[1]["finish_reason"]


def test_log_probs_are_those_of_what_the_grammar_leaves(tiny: InferenceEngine) -> None:
    output = tiny.generate(ASK, regex="(?:ab){3}|c", temperature=1.0, n=8, seed=4, logprobs=2)
    for ids, logprobs, tops in zip(
        output.token_ids, output.logprobs, output.top_logprobs or [], strict=True
    ):
        assert max(logprobs) <= 1e-5
        assert logprobs[-1] == pytest.approx(0, abs=1e-5)  # the end is all that is left
        assert all(token in top for token, top in zip(ids, tops, strict=True))


def test_a_grammar_that_becomes_too_complex_is_an_error_of_its_call_alone(
    tiny: InferenceEngine,
) -> None:
    hard = r"(?:.{0,99}a){0,99}(?:.{0,99}b){0,99}"
    wide = {token: 20 for token in tiny.tokenizer.encode("ababab", add_special_tokens=False)}
    with pytest.raises(InferenceError, match="llguidance cannot continue its grammar"):
        tiny.generate(ASK, regex=hard, logit_bias=wide, temperature=1, seed=1, max_tokens=128, n=8)
    assert tiny.generate(ASK, regex="fine", max_tokens=16).completions == ["fine"]
