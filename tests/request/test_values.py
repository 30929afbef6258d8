"""The value of each keyword: which types and ranges it takes, and what they become."""

from __future__ import annotations

import math
import re
import threading
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from _inf.errors import ConfigError, ToolError
from _inf.request.keywords import KEYWORDS, PER_CALL, PER_PROMPT
from _inf.request.values import TEMPLATE_OWN, TOOL_KWARGS
from tests.support.fuzz_cases import KEYWORDS as CALLS
from tests.support.sampling import (
    DEFAULT,
    HUGE,
    VOCABULARY,
    asked,
    fault,
    greedy,
    refusal,
    sampled,
)

SIZES = {"max_pattern_size": 2, "min_count": 2}
PENALTIES = ([-2, 0, 2], [-2.0000001, 2.0000001])
IDS = [[VOCABULARY], [-1], [2**63], [HUGE], [True], [5.0], ["5"], [np.bool_(True)], 5, "5", {5}]
LOOPS = [5, {"_target": "a"}, b"a"]
# Of each keyword: values that it takes up to its limits, and values that it refuses; of a keyword
# without a row here, a value of its type.
TAKEN = {"bool": [True, False], "float": [0.5], "int": [1], "str": ["a"]}
TYPES = {name: row.typed or getattr(row.kind, "__name__", "") for name, row in KEYWORDS.items()}
LIMITS = {name: (TAKEN.get(kind, []), []) for name, kind in TYPES.items()}
LIMITS |= {
    "temperature": ([0, 1e-6, 100.0], [-1e-9, math.inf]),
    "top_p": ([1e-9, 1], [0, -0.0, 1.0000001]),
    "top_k": ([-1, 1, 2**31 - 1], [0, -2, 2**31]),  # SGLang dies of one beyond int32
    "min_p": ([0, 1], [-1e-9, 1.0000001]),
    "max_tokens": ([1, 2**31 - 1], [0, 2**31]),
    "min_tokens": ([0, DEFAULT.response_length], [-1, DEFAULT.response_length + 1]),
    "stop": (["\n", " ", [], ("\n", "b")], ["", ["a", ""], "\ud800", ["a\udc00"], 5]),
    "stop_token_ids": ([[], [0, VOCABULARY - 1]], IDS),
    "presence_penalty": PENALTIES,
    "frequency_penalty": PENALTIES,
    # A quotient that overflows float32 makes log probs NaN, and sampling kills the engine.
    "repetition_penalty": ([1e-6, 2], [0, -0.0, 9.9e-7, 5e-324]),
    "logit_bias": (
        [{}, {5: -100, "383": 100}],
        [{-1: 1}, {"384": 1}, {5.0: 1}, {"five": 1}, {5: 1, "5": 2}, {5: 100.5}, {5: math.nan}, 5],
    ),
    "allowed_token_ids": ([[5], [0, VOCABULARY - 1]], [[], *IDS]),
    "bad_words": (["a", ["a", " b"]], ["", ["a", "\n"], "\ud800", ["a", 5]]),
    "logprob_token_ids": ([[5] * 128], [[], [5] * 129, *IDS]),
    "thinking_token_budget": ([-1, 0], [-2]),
    "repetition_detection": (
        [{}, SIZES],
        [{"max_pattern_size": 2}, {**SIZES, "min_count": 1}, {**SIZES, "min_pattern_size": 3}]
        + [{"max_patern_size": 2}],
    ),
    "seed": ([0, 2**63 - 1], [-1, 2**63]),
    "json_schema": ([True, {}], ["{"]),
    "regex": (["a"], ["("]),
    "tools_kwargs": ([{"f": {TOOL_KWARGS[0]: {}}}], [{"f": {"create": {}}}, {"f": 5}]),
    "interaction_kwargs": ([{"name": "a"}], [{1: 2}]),
    "max_tokens_per_turn": ([1], [0]),
    "agent_loop": (["a", object, {"_target_": "a"}], LOOPS),
    "agent_kwargs": ([{"a": 1}], [{"raw_prompt": 1}]),
    "environment_factory": ([object, {"a": object}], [{}, {"a": 5}, 5]),
    "environment_kwargs": ([{"a": 1}], [{1: 2}]),
    "adapter": (["a"], ["", "\ud800"]),
    "n": ([1, 2**16], [0, 2**16 + 1]),  # all rows are created before any is sent
    "num_beams": ([1, VOCABULARY], [0, VOCABULARY + 1]),
    "chat_template": (["a"], ["", " \n"]),
    "chat_template_kwargs": (
        [{"enable_thinking": False}],
        [{"a": 1, name: False} for name in TEMPLATE_OWN] + [{1: 2}, [("a", 1)]],
    ),
    "truncate_prompt": (["left", "right"], ["middle", "", ["left"]]),
    "logprobs": ([-1, 0, VOCABULARY], [-2, VOCABULARY + 1]),
    "prompt_logprobs": ([True, False, -1, 1, VOCABULARY], [0, -2, VOCABULARY + 1]),
    "sampling_mask": ([False], []),
    "on_error": (["raise", "row"], ["rows", ""]),
    "timeout": ([1e-9, threading.TIMEOUT_MAX], [0, 2 * threading.TIMEOUT_MAX]),
}
NUMBERS = [name for name, kind in TYPES.items() if kind == "float"]
COUNTS = [name for name, kind in TYPES.items() if kind == "int"]
NOT_FLAGS = [0, "true", [[True]], np.array([True, False])]
NOT_NUMBERS = [True, np.bool_(True), "0.5", [[1]], 1j, Decimal(1), math.nan, np.float32("nan")]
NOT_NUMBERS += [np.array(1), torch.ones(2), object()]
NOT_COUNTS = [*NOT_NUMBERS, 1.0, np.float64(3), Fraction(3)]
WRONG = {"float": NOT_NUMBERS, "int": NOT_COUNTS, "bool": NOT_FLAGS}


@pytest.mark.parametrize("name", sorted(KEYWORDS.keys() - {"tools"}))  # test_tools.py has these
def test_keyword_takes_values_up_to_its_limits_and_refuses_all_others_by_name(name):
    taken, refused = LIMITS[name]
    for value in taken:
        sampled(**{name: value})
    huge = [-HUGE, 10**400, Fraction(10**400)]
    for value in [*refused, *huge, *WRONG.get(TYPES[name], [object(), iter([5]), b"5", math.nan])]:
        key = str(fault(**{name: value}).key)
        assert re.split(r"[.\[]", key)[0] == name, value
    for value in ([1], [0.5, 0.5], (True, True)) if name in PER_CALL else ():
        assert fault(_prompts=2, **{name: value}).key == name


def sent(name: str, value: Any) -> Any:
    """What becomes of a keyword's value, for all rows or in the first."""
    sampling = sampled(**{name: value})
    if name == "do_sample":
        return not greedy(sampling)
    [of_row] = sampling.params
    own = {**vars(of_row), **vars(sampling.turns[0]), **vars(sampling), **asked(of_row)}
    return own.get(name, KEYWORDS[name].neutral)


@pytest.mark.parametrize(
    ("names", "values", "type_"),
    [
        (NUMBERS, [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)], float),
        (NUMBERS, [1, np.int64(1)], float),
        (COUNTS, [3, np.int64(3), np.uint8(3)], int),
    ],
)
def test_value_of_any_kind_becomes_a_plain_one(names, values, type_):
    for name in names:
        for value in values:
            assert sent(name, value) == value and type(sent(name, value)) is type_, name


@pytest.mark.parametrize("name", [name for name in PER_PROMPT if LIMITS[name][0]])
def test_list_gives_each_prompt_its_value_and_none_the_configs(name):
    taken, refused = LIMITS[name]
    if PER_PROMPT[name].is_list:
        taken, refused = [value for value in taken if not isinstance(value, str)], []
    default = sampled()
    assert any(sampled(**{name: value}) != default for value in taken)
    for value in taken:
        alone = sampled(**{name: value})
        for values in ([value, None], (value, None)):
            both = sampled(_prompts=2, **{name: values})
            assert both.params == [*alone.params, *default.params]
            assert both.turns == [*alone.turns, *default.turns]
        if name != "seed":  # of which each prompt gets its own
            both = sampled(_prompts=2, **{name: value})
            assert (both.params, both.turns) == (alone.params * 2, alone.turns * 2)
    for value in refused:
        said = refusal(_prompts=2, **{name: [taken[0], value]})
        assert said == f"{refusal(**{name: value})} (prompt 1)"
    for length in (1, 3):
        assert refusal(_prompts=2, **{name: [taken[0]] * length}) == (
            f"{name}: a list of {length} values for 2 prompts; "
            "give one value for all, or one per prompt."
        )


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"n": 0}, "n: 0 is out of range; it must be from 1 to 65536."),
        ({"stop_token_ids": [5, -1]}, "stop_token_ids[1]: -1 is outside the vocabulary of 384 tok"),
        ({"environment_factory": {"a": 5}}, "environment_factory.a: 5 cannot be called"),
        (
            {"tools_kwargs": {"f": {"create_kwarg": {}}}},
            "tools_kwargs.f: 'create_kwarg' is none of 'create_kwargs', 'execute_kwargs', "
            "'calc_reward_kwargs', 'release_kwargs'; did you mean 'create_kwargs'?",
        ),
    ],
)
def test_refusal_names_the_place_and_what_to_write(params, says):
    assert refusal(**params).startswith(says)


def test_list_that_mixes_values_and_lists_is_refused():
    for prompts in (1, 2):  # it is neither one list nor one per prompt
        for mixed, place in (([5, [5]], 1), ([None, 5], 0)):
            assert fault(_prompts=prompts, stop_token_ids=mixed).key == f"stop_token_ids[{place}]"
        for strings in (["a", None], [["a"], "b"]):
            assert fault(_prompts=prompts, stop=strings).key == "stop"


def test_values_are_sent_in_the_engines_form():
    assert sent("logit_bias", {np.int64(5): -100, "383": np.float32(2)}) == {5: -100.0, 383: 2.0}
    assert sent("stop", "\n\n") == ["\n\n"] and sent("stop", ("a", "b")) == ["a", "b"]
    assert sent("thinking_token_budget", -1) is sent("repetition_detection", {}) is None
    assert sent("repetition_detection", SIZES) == {**SIZES, "min_pattern_size": 1}
    [params] = sampled(logprobs=-1, prompt_logprobs=-1).params
    assert asked(params) == {"logprobs": VOCABULARY, "prompt_logprobs": VOCABULARY}


PLAIN = {bool, int, float, str, list, dict, type(None)}


@settings(max_examples=300)
@given(CALLS)
def test_any_values_end_in_plain_types_or_a_refusal_by_name(params):
    try:
        sampling = sampled(**params)
    except (ConfigError, ToolError) as failure:
        assert re.split(r"[.\[]", str(failure.key))[0] in params
        return
    (of_row,) = sampling.params
    own = {**vars(of_row), **asked(of_row)}
    of_defaults = {"parts", *(name for name, value in own.items() if value == ())}
    assert all(type(value) in PLAIN for name, value in own.items() if name not in of_defaults)
    assert all(type(i) is int and 0 <= i < VOCABULARY for i in of_row.stop_token_ids)
    assert all(type(each) is str and each for each in of_row.stop)
