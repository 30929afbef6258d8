"""Grammars on the real engine; that answers follow them: `test_backends.py`, and random walks in
`tests/request/test_grammar.py`."""

import re

import pytest

from inf import InferenceError

ASK = "Write something about a red ball."


def test_min_tokens_holds_the_end_off_as_long_as_the_grammar_can_go_on(tiny):
    sampling = {"temperature": 1.0, "max_tokens": 40, "n": 8, "seed": 1}
    long = tiny.generate(ASK, regex="[ab]{2,}", min_tokens=20, **sampling)
    assert min(row["completion_tokens"] for row in long.metadata) >= 20
    full = tiny.generate(ASK, regex="[ab]{2,5}", min_tokens=20, **sampling)
    assert all(re.fullmatch("[ab]{2,5}", text) for text in full.completions)
    assert {row.finish_reason for row in full} == {"stop"}


def test_a_grammar_that_becomes_too_complex_is_an_error_of_its_call_alone(tiny):
    hard = r"(?:.{0,99}a){0,99}(?:.{0,99}b){0,99}"
    wide = {token: 20 for token in tiny.tokenizer.encode("ababab", add_special_tokens=False)}
    with pytest.raises(InferenceError, match="llguidance cannot continue its grammar"):
        tiny.generate(ASK, regex=hard, logit_bias=wide, temperature=1, seed=1, max_tokens=128, n=8)
    assert tiny.generate(ASK, regex="fine", max_tokens=16).completions == ["fine"]
