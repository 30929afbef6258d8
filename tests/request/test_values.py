"""The value of each keyword: which types and ranges it takes, and what they become."""

from __future__ import annotations

import math
import re
import threading
import typing
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from _inf.errors import ConfigError, ToolError
from _inf.request.keywords import GenerateParams
from _inf.types import SamplingParams
from tests.support.fuzz_cases import KEYWORDS
from tests.support.refusals import refused
from tests.support.sampling import (
    DEFAULT,
    HUGE,
    VOCABULARY,
    config,
    fault,
    greedy,
    refusal,
    sampled,
)

SERVED = sorted(GenerateParams.__annotations__.keys() - {"tools"})  # test_tools.py has these
NUMBERS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"]
NUMBERS += ["repetition_penalty", "timeout"]
COUNTS = ["top_k", "max_tokens", "min_tokens", "seed", "n", "num_beams"]
FLAGS = ["do_sample", "ignore_eos", "skip_special_tokens", "progress"]


def sent(name: str, value: Any) -> Any:
    """What becomes of a keyword's value, for all rows or in the first."""
    sampling = sampled(**{name: value})
    if name == "do_sample":
        return not greedy(sampling)
    return {**vars(sampling.params[0]), **vars(sampling)}[name]


# ── Types and ranges ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("names", "values", "type_"),
    [
        (NUMBERS, [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)], float),
        (NUMBERS, [1, np.int64(1)], float),
        (COUNTS, [3, np.int64(3), np.uint8(3)], int),
        (FLAGS, [True], bool),
        (FLAGS, [False], bool),
    ],
)
def test_value_of_any_kind_becomes_a_plain_one(
    names: list[str], values: list[Any], type_: type
) -> None:
    for name in names:
        for value in values:
            assert sent(name, value) == value and type(sent(name, value)) is type_, name


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("temperature", [0, 1e-6, 1, 100.0], [-1e-9, -1, math.inf]),
        ("top_p", [1e-9, 0.5, 1], [0, -0.0, -0.5, 1.0000001, 1.1, 2]),
        ("min_p", [0, 1e-9, 1], [-1e-9, 1.0000001]),
        ("presence_penalty", [-2, 0, 2], [-2.0000001, 2.0000001]),
        ("frequency_penalty", [-2, 0, 2], [-2.0000001, 2.0000001]),
        ("timeout", [1e-9, 1, 1e6], [0, -1]),
        ("top_k", [-1, 1, VOCABULARY, VOCABULARY + 1], [0, -2, -(2**63)]),
        ("max_tokens", [1, 10**6, 2**31 - 1], [0, -1, -HUGE, 2**31]),
        ("min_tokens", [0, DEFAULT.response_length], [-1, -HUGE, DEFAULT.response_length + 1]),
        ("seed", [0, 2**32, 2**63 - 1], [-1, -HUGE, 2**63]),
        # A quotient that overflows float32 makes log probs NaN, and sampling kills the engine.
        ("repetition_penalty", [1e-6, 1, 2], [0, -0.0, -1, 9.9e-7, 1e-38, 1e-46, 1e-320, 5e-324]),
        ("n", [1, 1000], [0, -1, -HUGE]),
        ("num_beams", [1, VOCABULARY], [0, -1, VOCABULARY + 1]),
    ],
)
def test_range_ends_where_it_says(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        sampled(**{name: value})
    for value in bad:
        assert fault(**{name: value}).key == name


NOT_NUMBERS: list[Any] = [
    True, np.bool_(True), "0.5", b"1", "", [[1]], ((1,),), [], {}, {1: 1}, 1j, Decimal(1),
    [1, 1],  # one value a prompt, and there is one prompt
    math.nan, math.inf, -math.inf, np.float32("nan"), np.array(1), np.array([1.0, 0.5]),
    torch.tensor(1), torch.tensor([0.5, 0.5]), object(), int, lambda: 1, range(1),
]  # fmt: skip
NOT_COUNTS: list[Any] = [1.0, np.float64(3), Fraction(3)]
NOT_FLAGS: list[Any] = [0, 1, "true", "", [], [1], [True, True], [[True]], math.nan]
NOT_FLAGS += [np.array([True, False]), torch.ones(2)]


@pytest.mark.parametrize(
    ("names", "odd"),
    [(NUMBERS + COUNTS, NOT_NUMBERS), (COUNTS, NOT_COUNTS), (FLAGS, NOT_FLAGS)],
)
def test_value_of_another_type_is_refused_by_name(names: list[str], odd: list[Any]) -> None:
    for name in names:
        for value in odd:
            assert fault(**{name: value}).key == name, value


@pytest.mark.parametrize("name", SERVED)
def test_number_beyond_all_bounds_is_refused_by_name(name: str) -> None:
    for value in (-(10**400), -HUGE, -Fraction(10**400), 10**400, HUGE, Fraction(10**400)):
        assert fault(**{name: value}).key == name


@pytest.mark.parametrize(("name", "most"), [("n", 2**16), ("top_k", 2**31 - 1)])
def test_keyword_takes_as_much_as_its_config_key(name: str, most: int) -> None:
    """SGLang dies of a top_k beyond int32, and all `n` rows are created before any is sent."""
    assert sent(name, most) == most == getattr(config(**{name: most}), name)
    for value in (most + 1, 2**63, 10**30):
        with refused(ConfigError, key=f"rollout.{name}"):
            config(**{name: value})
        assert fault(**{name: value}).key == name


def test_timeout_longer_than_any_wait_is_as_good_as_none_or_refused() -> None:
    """`threading.TIMEOUT_MAX` is some 292 years; waiting longer raises OverflowError."""
    for timeout in (1e10, 1e300):
        try:
            resolved = sampled(timeout=timeout).timeout
        except ConfigError as failure:
            assert failure.key == "timeout"
        else:
            assert resolved is None or resolved <= threading.TIMEOUT_MAX


OF_LISTS = "stop stop_token_ids bad_words bad_word_ids allowed_token_ids logprob_token_ids".split()
PLAIN = {"logit_bias": dict, "repetition_detection": dict, **dict.fromkeys(OF_LISTS, list)}
HINTS = typing.get_type_hints(SamplingParams)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(KEYWORDS)
def test_any_values_end_in_plain_types_or_a_refusal_by_name(params: dict[str, Any]) -> None:
    try:
        sampling = sampled(**params)
    except (ConfigError, ToolError) as failure:
        assert re.split(r"[.\[]", str(failure.key))[0] in params
        return
    (of_row,) = sampling.params
    for name, value in vars(of_row).items():
        allowed = {PLAIN.get(name, HINTS[name]), *typing.get_args(HINTS[name])}
        assert type(value) in allowed, name
    assert all(type(i) is int and 0 <= i < VOCABULARY for i in of_row.stop_token_ids)
    assert all(type(each) is str and each for each in of_row.stop)


# ── Ids, biases and strings ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logprob_token_ids"])
def test_ids_that_are_no_ids_are_refused_by_their_place(name: str) -> None:
    for value in (5, "5", {5}, {5: 1}, range(3), np.array(5), iter([5]), b"5"):
        assert fault(**{name: value}).key == name
    for odd in (-1, VOCABULARY, 2**63, HUGE, True, 5.0, math.nan, "5", None, np.bool_(True)):
        for given_ids, index in (([5, odd], None), ([[5, odd]], 0)):
            failure = fault(**{name: given_ids})
            assert (failure.key, failure.index) == (f"{name}[1]", index)
    for prompts in (1, 2):  # a list that mixes both is neither one list nor one per prompt
        for mixed, place in (([5, [5]], 1), ([[5], 5], 0), ([5, None], 1), ([None, 5], 0)):
            said = refusal(_prompts=prompts, **{name: mixed})
            assert said.startswith(f"{name}[{place}]: {mixed[place]!r} is not an int")


def test_minus_one_asks_for_the_log_probs_of_the_whole_vocabulary() -> None:
    [params] = sampled(logprobs=-1, prompt_logprobs=-1).params
    assert params.logprobs == params.top_prompt_logprobs == VOCABULARY
    for name in ("logprobs", "prompt_logprobs"):
        assert fault(**{name: -2}).key == fault(**{name: VOCABULARY + 1}).key == name


def test_lists_of_ids_that_leave_or_ask_for_none_are_refused() -> None:
    for name in ("allowed_token_ids", "logprob_token_ids"):
        assert fault(**{name: []}).key == name
    assert fault(logprob_token_ids=[5] * 129).key == "logprob_token_ids"
    assert fault(logprob_token_ids=[5, 6], logprobs=3).key == "logprobs"
    assert sampled(logprob_token_ids=[5, 6], logprobs=2).params[0].logprobs == 2
    asked = {"logprob_token_ids": [5], "temperature": 1, "top_k": 3}
    assert fault(sampling_mask=True, **asked).key == "sampling_mask"
    assert fault(allowed_token_ids=[2, 0], min_tokens=1).key == "min_tokens"  # the EOS ids
    assert sampled(allowed_token_ids=[2, 0, 5], min_tokens=1).params
    for word in ("", " ", "\n"):
        assert fault(bad_words=["a", word]).key == "bad_words[1]"


def test_logit_bias_is_sent_as_ids_and_floats_and_an_empty_one_not_at_all() -> None:
    for given_bias in ({5: -100, "383": 2}, {np.int64(5): -100.0, 383: np.float32(2)}):
        sent = sampled(logit_bias=given_bias).params[0].logit_bias
        assert sent == {5: -100.0, 383: 2.0}
        assert all(type(key) is int and type(bias) is float for key, bias in sent.items())
    for nothing in (None, {}):
        assert sampled(logit_bias=nothing).params[0].logit_bias == {}
    first, second = sampled(_prompts=2, logit_bias=[{}, {5: 1}]).params
    assert first.logit_bias == {} and second.logit_bias == {5: 1.0}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (5, "logit_bias: 5 is not a mapping of token ids to numbers."),
        ([(5, 1)], "logit_bias: (5, 1) is not a mapping"),
        ({-1: 1}, "logit_bias: -1 is outside the vocabulary of 384 tokens."),
        ({"384": 1}, "logit_bias: 384 is outside the vocabulary of 384 tokens."),
        ({5.0: 1}, "logit_bias: 5.0 is not an int."),
        ({True: 1}, "logit_bias: True is not an int."),
        ({"five": 1}, "logit_bias: 'five' is not an int."),
        ({"5" * 5000: 1}, "logit_bias: '555"),
        ({5: 1, "5": 2}, "logit_bias: the token 5 appears twice."),
        ({5: 100.5}, "logit_bias[5]: 100.5 is out of range; it must be at least -100 and at most"),
        ({5: -101}, "logit_bias[5]: -101 is out of range"),
        ({5: math.nan}, "logit_bias[5]: nan is not a finite number."),
        ({5: None}, "logit_bias[5]: None is not a number."),
        ({5: "1"}, "logit_bias[5]: '1' is not a number."),
    ],
)
def test_logit_bias_that_is_wrong_is_refused_by_its_token(value: Any, says: str) -> None:
    assert refusal(logit_bias=value).startswith(says)


def test_stop_is_a_string_or_several() -> None:
    assert sampled().params[0].stop == sampled(stop=[]).params[0].stop == []
    for several in (["\n", "END"], ("\n", "END"), [["\n", "END"]]):
        assert sampled(stop=several).params[0].stop == ["\n", "END"]
    assert sampled(stop="\n\n").params[0].stop == ["\n\n"]
    assert sampled(stop=" ").params[0].stop == [" "]


def test_stop_that_is_no_string_or_no_text_is_refused_by_name() -> None:
    for odd in (5, b"a", True, {"a"}, {"a": 1}, iter(["a"]), HUGE, ["a", 5], [b"a"], [["a", None]]):
        said = refusal(stop=odd)
        assert said.startswith("stop: ") and "neither a string nor a list of strings" in said
    assert fault(stop=[["a", 5]]).index == 0
    for prompts in (1, 2):  # neither one list nor one per prompt
        for mixed in (["a", None], [None, "a"], [["a"], "b"], ["a", ["b"]]):
            assert fault(_prompts=prompts, stop=mixed).key == "stop"
    for empty in ("", [""], ["a", ""], [["a", ""]]):
        assert refusal(stop=empty).startswith("stop: an empty string stops everything")
    # No answer contains a lone surrogate, and the engine would die of one.
    for no_unicode in ("\ud800", ["a", "a\udc00"], [["\ud83d\ude00"]]):
        assert fault(stop=no_unicode).key == "stop"
