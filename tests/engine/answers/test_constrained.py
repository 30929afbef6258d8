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


def reasons(output: GenerationOutput) -> list[str]:
    return [row["finish_reason"] for row in output.metadata]


def test_answers_that_ended_match_their_schemas(tiny: InferenceEngine) -> None:
    schemas = [schema for schema, _, _ in SCHEMAS for _ in range(2)]
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


def test_answers_that_ended_match_their_regexes(tiny: InferenceEngine) -> None:
    output = tiny.generate(
        [ASK] * len(REGEXES), regex=REGEXES, temperature=1.0, max_tokens=96, seed=1
    )
    for regex, text, reason in zip(REGEXES, output.completions, reasons(output), strict=True):
        assert reason == "length" or re.fullmatch(regex, text), (regex, text)
    assert reasons(output).count("length") <= 2


def test_min_tokens_holds_the_end_off_as_long_as_the_grammar_can_go_on(
    tiny: InferenceEngine,
) -> None:
    sampling: dict[str, Any] = {"temperature": 1.0, "max_tokens": 40, "n": 8, "seed": 1}
    long = tiny.generate(ASK, regex="[ab]{2,}", min_tokens=20, **sampling)
    assert min(row["completion_tokens"] for row in long.metadata) >= 20
    full = tiny.generate(ASK, regex="[ab]{2,5}", min_tokens=20, **sampling)
    assert all(re.fullmatch("[ab]{2,5}", text) for text in full.completions)
    assert set(reasons(full)) == {"stop"}


def test_a_grammar_that_becomes_too_complex_is_an_error_of_its_call_alone(
    tiny: InferenceEngine,
) -> None:
    hard = r"(?:.{0,99}a){0,99}(?:.{0,99}b){0,99}"
    wide = {token: 20 for token in tiny.tokenizer.encode("ababab", add_special_tokens=False)}
    with pytest.raises(InferenceError, match="llguidance cannot continue its grammar"):
        tiny.generate(ASK, regex=hard, logit_bias=wide, temperature=1, seed=1, max_tokens=128, n=8)
    assert tiny.generate(ASK, regex="fine", max_tokens=16).completions == ["fine"]
