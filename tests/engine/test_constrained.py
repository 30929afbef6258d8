"""Constrained answers of a real model: all that ended match, whatever was drawn."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from grammars import REGEXES, draw_schemas

from inf import ConfigError, GenerationOutput, InferenceEngine

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


def test_answers_that_ended_match_their_schemas(engine: InferenceEngine) -> None:
    schemas, _ = draw_schemas(50)
    asks = [f"Give me example {n} of a short JSON value, on one line." for n in range(50)]
    output = engine.generate(
        asks, json_schema=schemas, temperature=1.0, max_tokens=192, seed=list(range(50))
    )
    for schema, text, reason in zip(schemas, output.completions, reasons(output), strict=True):
        if reason == "stop":
            jsonschema.validate(json.loads(text), schema)
    assert set(reasons(output)) <= {"stop", "length"}
    # The small model likes blank lines, which are allowed between any two tokens of JSON.
    assert reasons(output).count("length") <= 20


def test_answers_that_ended_match_their_regexes(engine: InferenceEngine) -> None:
    output = engine.generate(
        [ASK] * len(REGEXES), regex=REGEXES, temperature=1.0, max_tokens=96, seed=1
    )
    for regex, text, reason in zip(REGEXES, output.completions, reasons(output), strict=True):
        assert reason == "length" or re.fullmatch(regex, text), (regex, text)
    assert reasons(output).count("length") <= 2


def test_a_random_model_is_held_to_its_grammar_too(tiny: InferenceEngine) -> None:
    output = tiny.generate(ASK, json_schema=json.dumps(FORM), n=16, temperature=1.0, seed=2)
    for text, reason in zip(output.completions, reasons(output), strict=True):
        if reason == "stop":
            jsonschema.validate(json.loads(text), FORM)
    regex = r"(?:[a-c]{2} ?){1,5}!"
    texts = tiny.generate(ASK, regex=regex, n=16, temperature=1.0, seed=2).completions
    assert len(set(texts)) > 8
    assert all(re.fullmatch(regex, text) for text in texts)


@pytest.mark.parametrize(
    "params",
    [
        {"json_schema": {"type": "integer", "multipleOf": 3}},
        {"json_schema": [{"type": "integer"}, {"type": "intger"}]},
        {"json_schema": "{"},
        {"regex": "("},
        {"regex": r"(a)\1"},
        {"regex": ["a", r"a(?=b)"]},
    ],
)
def test_bad_grammar_raises_and_the_engine_goes_on(
    tiny: InferenceEngine, params: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=f"^{next(iter(params))}"):
        tiny.generate([ASK, ASK], **params)
    assert tiny.generate(ASK, regex="fine", max_tokens=16).completions == ["fine"]
