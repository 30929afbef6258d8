"""Keywords become complete parameters of plain types, or are refused by name."""

from __future__ import annotations

import copy
import dataclasses
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from _inf.config import RolloutConfig, load_config
from _inf.errors import ConfigError
from _inf.request import keywords
from _inf.request.keywords import GenerateParams
from _inf.request.sampling import (
    LISTS,
    Sampling,
    check_params,
    effective_params,
    resolve,
)
from _inf.request.seeds import MAX_SEED, derived_seed, prompt_seed
from _inf.request.values import TEMPLATE_OWN
from _inf.types import Limits, ModelInfo, SamplingParams, TurnOptions

VOCABULARY = 384
PER_CALL = keywords.PER_CALL.keys()
EOS = frozenset({2, 0})
MODEL = ModelInfo(None, EOS, Limits(prompt=512, total=640, vocabulary=VOCABULARY))
HUGE = 10**5000  # more digits than Python prints, and no float
TURNS = {field.name for field in dataclasses.fields(TurnOptions)}
SERVED = sorted(GenerateParams.__annotations__.keys() - {"tools"})  # test_tools.py has these
NUMBERS = [
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "timeout",
]
COUNTS = ["top_k", "max_tokens", "min_tokens", "seed", "n", "num_beams"]
FLAGS = ["do_sample", "ignore_eos", "skip_special_tokens", "progress"]


def config(**rollout: Any) -> RolloutConfig:
    return load_config({"rollout": rollout}, {}).rollout


DEFAULT = config()


def sampled(_config: RolloutConfig = DEFAULT, _prompts: int = 1, **params: Any) -> Sampling:
    return resolve(params, _config, _prompts, MODEL)


def greedy(sampling: Sampling) -> bool:
    return all(params.greedy for params in sampling.params)


def refusal(_config: RolloutConfig = DEFAULT, _prompts: int = 1, **params: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(params, _config, _prompts, MODEL)
    return str(caught.value)


# ── Where values come from ───────────────────────────────────────────────────────────────────────


def test_request_without_keywords_is_what_the_config_says() -> None:
    says = config(temperature=0.7, top_p=0.9, top_k=40, n=3, response_length=9, ignore_eos=True)
    sampling = sampled(says)
    assert sampling.params == [
        SamplingParams(
            temperature=0.7,
            top_p=0.9,
            top_k=40,
            max_tokens=9,
            ignore_eos=True,
            stop_token_ids=[],
            stop=[],
        )
    ]
    assert (sampling.n, sampling.timeout) == (3, None)
    assert sampling.skip_special_tokens and sampling.chat_template_kwargs == {}
    assert sampling.asks("prompt_logprobs") is False and sampling.progress is None
    assert sampled(says, **dict.fromkeys(GenerateParams.__annotations__)) == sampling


def test_every_keyword_wins_over_the_config() -> None:
    says = config(temperature=0.7, top_p=0.9, top_k=40, n=3, response_length=9, ignore_eos=True)
    sampling = sampled(
        says,
        temperature=0.5,
        top_p=0.25,
        top_k=-1,
        min_p=0.125,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.5,
        max_tokens=1000,
        min_tokens=10,
        ignore_eos=False,
        stop="\n",
        stop_token_ids=[383],
        seed=7,
        n=1,
        skip_special_tokens=False,
        prompt_logprobs=True,
        chat_template_kwargs={"enable_thinking": False},
        timeout=2,
        progress=False,
    )
    assert sampling.params == [
        SamplingParams(
            temperature=0.5,
            top_p=0.25,
            top_k=-1,
            min_p=0.125,
            presence_penalty=-2.0,
            frequency_penalty=2.0,
            repetition_penalty=1.5,
            max_tokens=1000,
            min_tokens=10,
            ignore_eos=False,
            stop_token_ids=[0, 2, 383],
            stop=["\n"],
            seed=7,
            prompt_logprobs=True,
        )
    ]
    assert (sampling.n, sampling.timeout) == (1, 2.0)
    assert not sampling.skip_special_tokens and sampling.asks("prompt_logprobs")
    assert sampling.progress is False
    assert sampling.chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    ("says", "params", "temperature"),
    [
        ({"temperature": 0.7}, {}, 0.7),
        ({"do_sample": False}, {}, 0),
        ({"do_sample": False}, {"temperature": 0.3}, 0.3),
        ({"do_sample": False}, {"do_sample": True}, 1),
        ({"do_sample": False}, {"do_sample": True, "temperature": 0.3}, 0.3),
        ({"temperature": 0.7}, {"do_sample": False}, 0),
        ({"temperature": 0.7}, {"do_sample": False, "temperature": 0}, 0),
        ({"temperature": 0.7}, {"do_sample": False, "temperature": None}, 0),
        ({"temperature": 0.7}, {"temperature": 0}, 0),
        ({"temperature": 0}, {}, 0),
        ({"temperature": 0}, {"temperature": 0.3}, 0.3),
        ({"temperature": 0.7}, {"temperature": -0.0}, 0),
    ],
)
def test_greedy_is_temperature_zero_by_any_keyword(
    says: dict[str, Any], params: dict[str, Any], temperature: float
) -> None:
    sampling = sampled(config(**says), **params)
    assert sampling.params[0].temperature == temperature
    assert greedy(sampling) == (temperature == 0)


def test_do_sample_false_beside_a_temperature_is_refused() -> None:
    says = "do_sample: False means greedy, but temperature=0.5 is set too"
    assert refusal(do_sample=False, temperature=0.5).startswith(says)
    assert refusal(do_sample=False, temperature=math.nan).startswith("temperature: ")


ASKING = [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"seed": 0}, {"temperature": 0.7}]
NEUTRAL = [{"top_p": 1}, {"top_k": -1}, {"min_p": 0}, {"logit_bias": {}}, {"max_tokens": 3}]


@pytest.mark.parametrize("asked", ASKING, ids=str)
def test_what_asks_for_sampling_samples_though_the_config_is_greedy(asked: dict[str, Any]) -> None:
    default = config(do_sample=False)
    assert sampled(default, **asked).params[0].temperature == asked.get("temperature", 1.0)
    name, value = next(iter(asked.items()))
    mixed = sampled(default, _prompts=2, **{name: [None, value]})
    assert [params.temperature > 0 for params in mixed.params] == [False, True]
    assert greedy(sampled(default, **{**asked, "temperature": 0}))


@pytest.mark.parametrize("asked", NEUTRAL, ids=str)
def test_neutral_value_asks_for_nothing(asked: dict[str, Any]) -> None:
    assert greedy(sampled(config(do_sample=False), **asked))
    assert greedy(sampled(do_sample=False, **asked))


@pytest.mark.parametrize("asked", ASKING, ids=str)
def test_do_sample_false_beside_what_it_would_ignore_is_refused(asked: dict[str, Any]) -> None:
    name, value = next(iter(asked.items()))
    says = f"do_sample: False means greedy, but {name}={value} is set too"
    assert refusal(do_sample=False, **asked).startswith(says)
    assert refusal(_prompts=2, do_sample=[True, False], **asked).startswith(says)


@pytest.mark.parametrize("asked", ASKING[:-1], ids=str)
def test_temperature_zero_agrees_with_do_sample_false_beside_any_keyword(
    asked: dict[str, Any],
) -> None:
    assert greedy(sampled(do_sample=False, temperature=0.0, **asked))
    assert refusal(do_sample="no", temperature=0).startswith("do_sample: 'no' is not a bool")


def test_samples_that_would_be_the_same_name_their_prompt() -> None:
    for one_answer in ({"temperature": 0}, {"do_sample": False}, {"top_k": 1}):
        assert "4 samples of prompt 0 are all the same" in sampled(n=4, **one_answer).same_samples
        assert not sampled(n=1, **one_answer).same_samples
    assert "prompt 1" in sampled(_prompts=2, n=2, temperature=[1, 0]).same_samples
    assert not sampled(n=4).same_samples and not sampled(_prompts=0, n=4).same_samples


def test_beams_are_greedy_and_each_row_has_its_own() -> None:
    says = config(temperature=0.7, do_sample=True)
    for agrees in ({}, {"temperature": 0, "seed": 3}, {"do_sample": False}, {"top_k": -1}):
        sampling = sampled(says, _prompts=2, num_beams=4, n=3, **agrees)
        assert greedy(sampling) and not sampling.same_samples
        assert [params.beam for params in sampling.rows()] == [0, 1, 2] * 2
    assert sampled(says, num_beams=1).params[0].temperature == 0.7


@pytest.mark.parametrize("asked", [*ASKING, {"do_sample": True}], ids=str)
def test_beams_beside_what_asks_for_sampling_are_refused(asked: dict[str, Any]) -> None:
    name, value = next(iter(asked.items()))
    says = f"num_beams: beams are not sampled, but {name}={value} is set too"
    assert refusal(num_beams=2, **asked).startswith(says)


def test_beams_have_as_many_rows_at_most_and_no_grammar() -> None:
    assert sampled(num_beams=4, n=4).n == 4
    fewer = "num_beams: 4 beams are fewer than the n={} rows of a prompt."
    assert refusal(num_beams=4, n=5) == fewer.format(5)
    assert refusal(config(n=8), num_beams=4) == fewer.format(8)
    assert refusal(num_beams=2, regex="a") == "num_beams: beams follow no grammar; leave regex out."


def test_parameters_are_checked_without_an_engine() -> None:
    check_params({"temperature": 0.5, "stop": ["a", "b"], "stop_token_ids": [5], "n": 2}, DEFAULT)
    for wrong in (
        {"temperature": -1},
        {"regex": "("},
        {"do_sample": False, "top_p": 0.5},
        {"n": 0},
    ):
        with pytest.raises(ConfigError, match=f"^{next(iter(wrong))}: "):
            check_params(wrong, DEFAULT)


def test_temperature_that_sglang_takes_for_zero_is_greedy() -> None:
    # Below 1e-6 it samples with top_k 1 at temperature 1 (`SamplingParams.__init__`), and so the
    # log probs are those of the logits, not of logits / temperature.
    for temperature in (9.9e-7, 1e-300, 5e-324):
        assert greedy(sampled(temperature=temperature))
    assert not greedy(sampled(temperature=1e-6))


# ── Types and ranges ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
@pytest.mark.parametrize("name", NUMBERS)
def test_number_of_any_kind_becomes_a_float(name: str, value: Any) -> None:
    sampling = sampled(**{name: value})
    sent = {"timeout": sampling.timeout, **vars(sampling.params[0])}[name]
    assert sent == 0.5 and type(sent) is float
    assert type(sampled(**{name: 1}).params[0].temperature) is float


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
@pytest.mark.parametrize("name", COUNTS)
def test_int_of_any_kind_becomes_an_int(name: str, value: Any) -> None:
    sampling = sampled(**{name: value})
    sent = {
        "n": sampling.n,
        "max_tokens": sampling.params[0].max_tokens,
        "min_tokens": sampling.params[0].min_tokens,
        "seed": sampling.params[0].seed,
        "top_k": sampling.params[0].top_k,
        "num_beams": sampling.params[0].num_beams,
    }
    assert sent[name] == 3 and type(sent[name]) is int


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
        ("repetition_penalty", [1e-6, 1, 2], [0, -0.0, -1, 9.9e-7]),
        ("n", [1, 1000], [0, -1, -HUGE]),
        ("num_beams", [1, VOCABULARY], [0, -1, VOCABULARY + 1]),
    ],
)
def test_range_ends_where_it_says(name: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        sampled(**{name: value})
    for value in bad:
        assert refusal(**{name: value}).startswith(f"{name}: ")


NOT_NUMBERS: list[Any] = [
    True,
    np.bool_(True),
    "0.5",
    b"1",
    "",
    [[1]],
    ((1,),),
    [1, 1],  # one value a prompt, and there is one prompt
    [],
    {},
    {1: 1},
    1j,
    Decimal(1),
    math.nan,
    math.inf,
    -math.inf,
    np.float32("nan"),
    np.array(1),
    np.array([1.0, 0.5]),
    torch.tensor(1),
    torch.tensor([0.5, 0.5]),
    object(),
    int,
    lambda: 1,
    range(1),
]


@pytest.mark.parametrize("name", [*NUMBERS, *COUNTS])
def test_what_is_no_number_is_refused_by_name(name: str) -> None:
    for value in NOT_NUMBERS:
        assert refusal(**{name: value}).startswith(f"{name}: ")


@pytest.mark.parametrize("name", COUNTS)
def test_count_that_is_not_an_int_is_refused_even_where_it_is_whole(name: str) -> None:
    for value in (1.0, np.float64(3), Fraction(3)):
        assert refusal(**{name: value}).startswith(f"{name}: {value!r} is not an int")


@pytest.mark.parametrize("name", FLAGS)
def test_flag_is_true_or_false_and_nothing_else(name: str) -> None:
    for value in (True, False):
        sampling = sampled(**{name: value})
        assert (
            value
            is {
                "do_sample": not greedy(sampling),
                "ignore_eos": sampling.params[0].ignore_eos,
                "skip_special_tokens": sampling.skip_special_tokens,
                "progress": sampling.progress,
            }[name]
        )
    array = np.array([True, False])
    for odd in (0, 1, "true", "", [], [1], [True, True], [[True]], math.nan, array, torch.ones(2)):
        assert refusal(**{name: odd}).startswith(f"{name}: ")


@pytest.mark.parametrize("name", SERVED)
def test_number_beyond_all_bounds_is_refused_by_name(name: str) -> None:
    values = [-(10**400), -HUGE, -Fraction(10**400), 10**400, HUGE, Fraction(10**400)]
    for value in values:
        assert refusal(**{name: value}).startswith(f"{name}: ")


def test_more_samples_than_memory_holds_are_refused() -> None:
    assert sampled(n=2**16).n == 2**16
    assert refusal(n=2**16 + 1).startswith("n: 65537 is out of range")
    with pytest.raises(ConfigError, match="^rollout.n: .*65536"):
        config(n=2**16 + 1)


@pytest.mark.parametrize("name", ["n", "top_k"])
def test_keyword_takes_no_more_than_its_config_key(name: str) -> None:
    """SGLang dies of a top_k beyond int32, and all `n` rows are created before any is sent."""
    for value in (2**31, 2**63, 10**30):
        with pytest.raises(ConfigError):
            config(**{name: value})
        assert refusal(**{name: value}).startswith(f"{name}: ")


def test_timeout_longer_than_any_wait_is_as_good_as_none_or_refused() -> None:
    """`threading.TIMEOUT_MAX` is some 292 years; waiting longer raises OverflowError."""
    import threading

    for timeout in (1e10, 1e300):
        try:
            resolved = sampled(timeout=timeout).timeout
        except ConfigError as refused:
            assert str(refused).startswith("timeout: ")
        else:
            assert resolved is None or resolved <= threading.TIMEOUT_MAX


ATOMS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=2)
)
TYPES = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "presence_penalty": float,
    "frequency_penalty": float,
    "max_tokens": int,
    "min_tokens": int,
    "ignore_eos": bool,
    "stop_token_ids": list,
    "stop": list,
    "json_schema": str,
    "regex": str,
    "logit_bias": dict,
    "repetition_penalty": float,
    "seed": int,
    "logprobs": int,
    "prompt_logprobs": bool,
    "top_prompt_logprobs": int,
    "sampling_mask": bool,
    "return_routed_experts": bool,
    "num_beams": int,
    "beam": int,
}
OPTIONAL = {"json_schema", "regex", "seed"}
VALUES = st.one_of(ATOMS, st.lists(ATOMS, max_size=3), st.dictionaries(ATOMS, ATOMS, max_size=2))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.dictionaries(st.sampled_from(SERVED), VALUES, max_size=4))
def test_any_values_end_in_plain_types_or_a_refusal_by_name(params: dict[str, Any]) -> None:
    try:
        sampling = sampled(**params)
    except ConfigError as refused:
        assert any(str(refused).startswith((f"{p}: ", f"{p}[", f"{p}.")) for p in params)
        return
    (sent,) = sampling.params
    for name, value in vars(sent).items():
        assert type(value) is TYPES[name] or (name in OPTIONAL and value is None), name
    assert all(type(i) is int and 0 <= i < 384 for i in sent.stop_token_ids)
    assert all(type(each) is str and each for each in sent.stop)


# ── Stop ids ─────────────────────────────────────────────────────────────────────────────────────


def test_stop_ids_join_the_models_eos_ids_each_once_and_in_order() -> None:
    for given_ids in ([383, 7, 2, 7], (383, 7), [np.int64(7), 383]):
        assert sampled(stop_token_ids=given_ids).params[0].stop_token_ids == [0, 2, 7, 383]
    assert sampled().params[0].stop_token_ids == [0, 2]
    assert sampled(stop_token_ids=[]).params[0].stop_token_ids == [0, 2]


def test_ignore_eos_drops_the_models_ids_and_keeps_the_callers() -> None:
    params = sampled(ignore_eos=True, stop_token_ids=[7, 2]).params[0]
    assert sorted(params.stop_token_ids) == [2, 7] and params.ignore_eos is True


def test_stop_ids_that_are_no_ids_are_refused_by_their_place() -> None:
    for value in (5, "5", {5}, {5: 1}, range(3), np.array([5]), iter([5]), b"5"):
        assert refusal(stop_token_ids=value).startswith("stop_token_ids: ")
    for odd in (-1, VOCABULARY, 2**63, HUGE, True, 5.0, math.nan, "5", None, np.bool_(True)):
        assert refusal(stop_token_ids=[5, odd]).startswith("stop_token_ids[1]: ")
        said = refusal(stop_token_ids=[[5, odd]])
        assert said.startswith("stop_token_ids[1]: ") and said.endswith(" (prompt 0)")
    for prompts in (1, 2):  # a list that mixes both is neither one list nor one per prompt
        for mixed, place in (([5, [5]], 1), ([[5], 5], 0), ([5, None], 1), ([None, 5], 0)):
            said = refusal(_prompts=prompts, stop_token_ids=mixed)
            assert said.startswith(f"stop_token_ids[{place}]: {mixed[place]!r} is not an int")


# ── Logit bias ───────────────────────────────────────────────────────────────────────────────────


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


# ── Stop strings, lengths, grammars ──────────────────────────────────────────────────────────────


def test_stop_is_a_string_or_several() -> None:
    assert sampled().params[0].stop == sampled(stop=[]).params[0].stop == []
    for several in (["\n", "END"], ("\n", "END"), [["\n", "END"]]):
        assert sampled(stop=several).params[0].stop == ["\n", "END"]
    assert sampled(stop="\n\n").params[0].stop == ["\n\n"]
    assert sampled(stop=" ").params[0].stop == [" "]


def test_stop_that_is_no_string_is_refused_by_name() -> None:
    for odd in (5, b"a", True, {"a"}, {"a": 1}, iter(["a"]), HUGE, ["a", 5], [b"a"], [["a", None]]):
        said = refusal(stop=odd)
        assert said.startswith("stop: ") and "neither a string nor a list of strings" in said
    assert refusal(stop=[["a", 5]]).endswith(" (prompt 0)")
    for prompts in (1, 2):  # neither one list nor one per prompt
        for mixed in (["a", None], [None, "a"], [["a"], "b"], ["a", ["b"]]):
            assert refusal(_prompts=prompts, stop=mixed).startswith("stop: ")


@pytest.mark.parametrize("stop", ["", [""], ["a", ""], [["a", ""]]])
def test_empty_stop_string_is_refused(stop: Any) -> None:
    assert refusal(stop=stop).startswith("stop: an empty string stops everything")


@pytest.mark.parametrize("stop", ["\ud800", ["a", "a\udc00"], [["\ud83d\ude00"]]])
def test_stop_string_that_is_no_unicode_is_refused(stop: Any) -> None:
    """No answer contains a lone surrogate, and the engine would die of one."""
    assert refusal(stop=stop).startswith("stop: ")


@pytest.mark.parametrize("penalty", [5e-324, 1e-320, 1e-46, 1e-38])
def test_repetition_penalty_that_no_logit_can_be_divided_by_is_refused(penalty: float) -> None:
    """The quotient overflows float32: greedy log probs are NaN, and sampling kills the engine."""
    assert refusal(repetition_penalty=penalty).startswith("repetition_penalty: ")


def test_min_tokens_above_max_tokens_is_refused_wherever_max_tokens_comes_from() -> None:
    assert refusal(min_tokens=9, max_tokens=8) == "min_tokens: 9 is above max_tokens, 8."
    assert sampled(min_tokens=8, max_tokens=8).params[0].min_tokens == 8
    assert refusal(config(response_length=8), min_tokens=9).startswith("min_tokens: 9 is above")
    both = refusal(_prompts=2, min_tokens=[8, 9], max_tokens=8)
    assert both == "min_tokens: 9 is above max_tokens, 8. (prompt 1)"


def test_answer_follows_one_grammar_a_prompt() -> None:
    schema = {"type": "integer"}
    assert refusal(json_schema=schema, regex="a+").startswith("regex: ")
    assert refusal(_prompts=2, json_schema=[None, schema], regex="a+").endswith(" (prompt 1)")
    first, second = sampled(_prompts=2, json_schema=[schema, None], regex=[None, "a+"]).params
    assert first.json_schema and first.regex is None
    assert second.json_schema is None and second.regex
    assert sampled().params[0].json_schema is None and sampled().params[0].regex is None


# ── One value a prompt ───────────────────────────────────────────────────────────────────────────

# Two values of each parameter that may differ between the prompts of a call.
PER_PROMPT: dict[str, tuple[Any, Any]] = {
    "temperature": (0.0, 0.5),
    "top_p": (0.5, 1),
    "top_k": (3, -1),
    "min_p": (0.5, 0),
    "max_tokens": (3, 4),
    "min_tokens": (3, 0),
    "do_sample": (False, True),
    "stop": (["a", "b"], []),
    "stop_token_ids": ([7], []),
    "seed": (0, 3),
    "presence_penalty": (1, -1),
    "frequency_penalty": (1, -1),
    "repetition_penalty": (1.5, 0.5),
    "ignore_eos": (True, False),
    "json_schema": ({"type": "integer"}, '{"type": "boolean"}'),
    "logit_bias": ({7: 1}, {"8": -100}),
    "regex": ("a+", "b+"),
}


def test_every_parameter_that_is_not_the_calls_may_differ_by_prompt() -> None:
    assert PER_PROMPT.keys() == keywords.PER_PROMPT.keys() - TURNS
    assert set(SERVED) - PER_PROMPT.keys() - TURNS == set(PER_CALL) - {"tools"}


@pytest.mark.parametrize("name", PER_PROMPT)
def test_list_gives_each_prompt_its_value_and_none_the_configs(name: str) -> None:
    first, second = PER_PROMPT[name]
    expected = [*sampled(**{name: first}).params, *sampled().params]
    expected += sampled(**{name: second}).params
    assert expected[0] != expected[1]
    for values in ([first, None, second], (first, None, second)):
        assert sampled(_prompts=3, **{name: values}).params == expected
    assert sampled(**{name: [first]}) == sampled(**{name: first})
    if name != "seed":  # of which each prompt gets its own
        assert sampled(_prompts=3, **{name: first}).params == [expected[0]] * 3


@pytest.mark.parametrize("name", PER_PROMPT)
def test_list_of_nothing_but_none_is_what_the_config_says(name: str) -> None:
    assert sampled(_prompts=2, **{name: [None, None]}) == sampled(_prompts=2)


@pytest.mark.parametrize("name", PER_PROMPT)
def test_list_of_another_length_is_refused_by_name(name: str) -> None:
    value = PER_PROMPT[name][0]
    for length in (1, 3) if name in LISTS else (0, 1, 3):
        said = refusal(_prompts=2, **{name: [value] * length})
        assert said == (
            f"{name}: a list of {length} values for 2 prompts; "
            "give one value for all, or one per prompt."
        )


@pytest.mark.parametrize("name", sorted(PER_PROMPT.keys() - LISTS))
def test_wrong_value_in_a_list_is_refused_as_alone_with_its_prompt(name: str) -> None:
    good = PER_PROMPT[name][0]
    for odd in (object(), math.nan, b"x"):
        said = refusal(_prompts=3, **{name: [good, odd, good]})
        assert said.startswith(f"{name}: ") and said == refusal(**{name: odd}) + " (prompt 1)"


@pytest.mark.parametrize("name", sorted(set(PER_CALL) - {"chat_template_kwargs", "tools"}))
def test_parameter_of_the_call_takes_no_list(name: str) -> None:
    for value in ([1], [True], [0.5, 0.5], (True, True)):
        assert refusal(_prompts=2, **{name: value}).startswith(f"{name}: ")


def test_lists_and_single_values_combine_prompt_by_prompt() -> None:
    sampling = sampled(_prompts=3, temperature=[0, 0.5, None], max_tokens=[3, None, 5], top_k=9)
    assert [params.temperature for params in sampling.params] == [0, 0.5, 1]
    assert [params.max_tokens for params in sampling.params] == [3, DEFAULT.response_length, 5]
    assert {params.top_k for params in sampling.params} == {9}
    assert not greedy(sampling) and greedy(sampled(_prompts=2, temperature=[0, 0.0]))
    with pytest.raises(ConfigError, match=r"^do_sample: .*\(prompt 2\)$"):
        sampled(_prompts=3, do_sample=[False, True, False], temperature=[0, 0.5, 0.5])


def test_empty_batch_hides_no_wrong_value() -> None:
    assert sampled(_prompts=0).params == sampled(_prompts=0, temperature=[]).params == []
    assert refusal(_prompts=0, top_p=9).startswith("top_p: ")
    assert refusal(_prompts=0, temperature=[0.5]).startswith("temperature: a list of 1 values for ")
    assert refusal(_prompts=0, temperature=[], top_p=9).startswith("top_p: ")


# ── Samples and their seeds ──────────────────────────────────────────────────────────────────────


def seeds(sampling: Sampling) -> list[int | None]:
    return [params.seed for params in sampling.rows()]


def test_samples_are_prompt_major_and_each_has_its_own_seed() -> None:
    sampling = sampled(_prompts=3, n=3, seed=[7, None, 8], max_tokens=[3, 4, 5])
    own = [[seed, derived_seed(seed, 1), derived_seed(seed, 2)] for seed in (7, 8)]
    assert seeds(sampling) == [*own[0], None, None, None, *own[1]]
    assert [params.max_tokens for params in sampling.rows()] == [3] * 3 + [4] * 3 + [5] * 3
    assert own[0][0] == 7 and len({*own[0], *own[1]}) == 6
    assert seeds(sampling) == seeds(sampling)


def test_seed_of_a_sample_alone_gives_that_sample() -> None:
    for each in sampled(n=4, seed=7, repetition_penalty=1.5).rows():
        assert sampled(seed=each.seed, repetition_penalty=1.5).rows() == [each]


def test_one_seed_for_all_prompts_gives_each_prompt_its_own_and_the_first_the_seed_itself() -> None:
    second = (7 + 0x9E3779B97F4A7C15) % 2**63
    assert prompt_seed(7, 1) == second
    wanted = [7, derived_seed(7, 1), second, derived_seed(second, 1)]
    assert seeds(sampled(_prompts=2, n=2, seed=7)) == wanted
    assert seeds(sampled(_prompts=2, n=2, seed=7, temperature=[0.5, 0.7])) == wanted
    assert seeds(sampled(_prompts=2, n=2, seed=[7, 7])) == wanted[:2] * 2


def test_neighbouring_seeds_of_many_prompts_have_none_in_common() -> None:
    both = [prompt_seed(seed, index) for seed in (7, 8) for index in range(1000)]
    assert len(set(both)) == 2000 and all(0 <= each < MAX_SEED for each in both)


@pytest.mark.parametrize("seed", [0, 7, MAX_SEED - 1])
def test_derived_seeds_are_seeds_and_meet_no_neighbours(seed: int) -> None:
    derived = [derived_seed(seed, sample) for sample in range(200)]
    assert derived[0] == seed and len({*derived, seed + 1, seed - 1}) == 202
    assert not {*derived[1:]} & {derived_seed(seed + 1, sample) for sample in range(200)}
    for each in derived:
        assert sampled(seed=each).params[0].seed == each


def test_derived_seed_is_the_same_in_every_process_and_version() -> None:
    assert derived_seed(7, 1) == 4228751037375301439


def test_prompt_logprobs_score_every_prompt_from_its_first_token() -> None:
    scored = sampled(_prompts=2, n=2, prompt_logprobs=True, max_tokens=[3, 4])
    assert all(params.prompt_logprobs for params in scored.rows())
    for without in (sampled(), sampled(prompt_logprobs=False)):
        assert not without.params[0].prompt_logprobs and not without.asks("prompt_logprobs")


def test_true_scores_the_prompt_and_a_number_adds_the_likeliest_tokens() -> None:
    for value, likeliest in ((True, 0), (1, 1), (np.int64(384), 384)):
        sampling = sampled(_prompts=2, prompt_logprobs=value)
        assert sampling.asks("prompt_logprobs") is True
        assert {each.top_prompt_logprobs for each in sampling.rows()} == {likeliest}
        assert sampling.asks("top_prompt_logprobs") is (likeliest > 0)
    for value in (0, -1, 385):
        assert refusal(prompt_logprobs=value).startswith(
            f"prompt_logprobs: {value} is out of range; it must be from 1 to 384"
        )
    for odd in ("true", 1.0, [1, 2], np.array([True, False])):
        assert "is neither a bool nor an int" in refusal(prompt_logprobs=odd)
    shown = [effective_params({"prompt_logprobs": value}, DEFAULT) for value in (True, 3, False)]
    assert [each.get("prompt_logprobs") for each in shown] == [True, 3, None]
    assert not {"top_prompt_logprobs"} & shown[1].keys()


# ── Names ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("temprature", "temperature"),
        ("max_new_tokens", "max_tokens"),
        ("max_token", "max_tokens"),
        ("topp", "top_p"),
        ("stop_token_id", "stop_token_ids"),
        ("do sample", "do_sample"),
        ("repetition_penality", "repetition_penalty"),
        ("min_new_tokens", "min_tokens"),
    ],
)
def test_unknown_keyword_names_the_nearest(name: str, nearest: str) -> None:
    says = f"{name}: generate() has no such parameter; did you mean {nearest!r}?"
    assert refusal(**{name: 1}).startswith(says)
    assert refusal(**{name: None}).startswith(says)  # None hides no typing error


@pytest.mark.parametrize("name", ["xyzzy", "", "é", "None", "self", "__class__"])
def test_unknown_keyword_with_nothing_near_is_refused_too(name: str) -> None:
    assert refusal(**{name: 1}) == f"{name}: generate() has no such parameter."


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("max_tokens_per_turn", 3, 4),
        ("tools_kwargs", {"a": {"create_kwargs": {"x": 1}}}, {"a": {}}),
        ("interaction_kwargs", {"name": "a"}, {"name": "b", "x": 1}),
    ],
)
def test_each_prompts_turns_have_their_own_keywords(name: str, first: Any, second: Any) -> None:
    turns = sampled(_prompts=3, **{name: [first, None, second]}).turns
    assert [getattr(each, name) for each in turns] == [first, getattr(TurnOptions(), name), second]
    turns = sampled(_prompts=2, **{name: first}).turns
    assert [getattr(each, name) for each in turns] == [first] * 2
    assert refusal(_prompts=3, **{name: [first, second]}).startswith(f"{name}: a list of 2 values")


# ── Template keywords, and the value itself ──────────────────────────────────────────────────────


def test_prompts_are_cut_on_one_side_or_as_the_config_says() -> None:
    assert sampled(truncate_prompt="left").truncate_prompt == "left"
    assert sampled(truncate_prompt="right").truncate_prompt == "right"
    assert sampled(truncate_prompt=None).truncate_prompt is None is sampled().truncate_prompt
    for value in ("middle", "", True, 5, ["left"]):
        assert refusal(truncate_prompt=value).startswith(f"truncate_prompt: {value!r} is neither")


def test_template_keywords_are_a_mapping_of_names() -> None:
    for value in ([], [("a", 1)], "a", 3, {1: 2}, {None: 1}, {"a": 1, 2: 3}):
        assert refusal(chat_template_kwargs=value).startswith("chat_template_kwargs: ")


@pytest.mark.parametrize("name", TEMPLATE_OWN)
def test_template_keyword_that_the_engine_sets_is_refused(name: str) -> None:
    said = refusal(chat_template_kwargs={"enable_thinking": True, name: False})
    assert said.startswith(f"chat_template_kwargs.{name}: ")


def test_nothing_of_the_callers_is_kept_or_changed() -> None:
    params: dict[str, Any] = {
        "stop_token_ids": [9, 5],
        "stop": ["a"],
        "chat_template_kwargs": {"a": 1},
    }
    before = copy.deepcopy(params)
    sampling = sampled(**params, ignore_eos=True)
    sampling.params[0].stop_token_ids.append(1)
    sampling.params[0].stop.append("b")
    sampling.chat_template_kwargs["b"] = 2
    assert params == before
    with pytest.raises(dataclasses.FrozenInstanceError):
        sampling.n = 2  # type: ignore[misc]
