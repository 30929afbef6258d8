"""Keywords and the config become complete parameters; what cannot be served is refused by name."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest

from _inf.errors import ConfigError
from _inf.request.keywords import GenerateParams
from _inf.request.sampling import check_params, effective_params
from _inf.request.values import TEMPLATE_OWN
from _inf.types import SamplingParams
from tests.support.refusals import refused
from tests.support.sampling import DEFAULT, config, fault, greedy, refusal, sampled

# ── Where values come from ───────────────────────────────────────────────────────────────────────


CONFIGURED = config(temperature=0.7, top_p=0.9, top_k=40, n=3, response_length=9, ignore_eos=True)


def test_request_without_keywords_is_what_the_config_says() -> None:
    sampling = sampled(CONFIGURED)
    own = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "max_tokens": 9, "ignore_eos": True}
    assert sampling.params == [SamplingParams(**own, stop_token_ids=[], stop=[])]
    assert (sampling.n, sampling.timeout) == (3, None)
    assert sampling.skip_special_tokens and sampling.chat_template_kwargs == {}
    assert sampling.asks("prompt_logprobs") is False and sampling.progress is None
    assert sampled(CONFIGURED, **dict.fromkeys(GenerateParams.__annotations__)) == sampling


def test_every_keyword_wins_over_the_config() -> None:
    of_rows: dict[str, Any] = {"temperature": 0.5, "top_p": 0.25, "top_k": -1, "min_p": 0.125}
    of_rows |= {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 1.5}
    of_rows |= {"max_tokens": 1000, "min_tokens": 10, "ignore_eos": False, "seed": 7}
    of_rows |= {"prompt_logprobs": True}
    of_call = {"n": 1, "skip_special_tokens": False, "timeout": 2, "progress": False}
    of_call |= {"chat_template_kwargs": {"enable_thinking": False}}
    sampling = sampled(CONFIGURED, **of_rows, **of_call, stop="\n", stop_token_ids=[383])
    assert sampling.params == [SamplingParams(**of_rows, stop=["\n"], stop_token_ids=[0, 2, 383])]
    assert {name: getattr(sampling, name) for name in of_call} == of_call
    assert sampling.asks("prompt_logprobs")


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
    assert greedy(sampled(**{"do_sample": False, **asked, "temperature": 0.0}))  # which agrees


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


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"regex": "("}, {"do_sample": False, "top_p": 0.5}, {"n": 0}],
    ids=str,
)
def test_parameters_are_checked_without_an_engine(wrong: dict[str, Any]) -> None:
    check_params({"temperature": 0.5, "stop": ["a", "b"], "stop_token_ids": [5], "n": 2}, DEFAULT)
    with refused(ConfigError, key=next(iter(wrong))):
        check_params(wrong, DEFAULT)


def test_temperature_that_sglang_takes_for_zero_is_greedy() -> None:
    # Below 1e-6 it samples with top_k 1 at temperature 1 (`SamplingParams.__init__`), and so the
    # log probs are those of the logits, not of logits / temperature.
    for temperature in (9.9e-7, 1e-300, 5e-324):
        assert greedy(sampled(temperature=temperature))
    assert not greedy(sampled(temperature=1e-6))


# ── What belongs together ────────────────────────────────────────────────────────────────────────


def test_stop_ids_join_the_models_eos_ids_each_once_and_in_order() -> None:
    for given_ids in ([383, 7, 2, 7], (383, 7), [np.int64(7), 383]):
        assert sampled(stop_token_ids=given_ids).params[0].stop_token_ids == [0, 2, 7, 383]
    assert sampled().params[0].stop_token_ids == [0, 2]
    assert sampled(stop_token_ids=[]).params[0].stop_token_ids == [0, 2]


def test_arrays_are_lists_wherever_a_keyword_takes_a_list() -> None:
    """As `pandas.read_parquet` gives them, whole columns of values per prompt too."""
    params = sampled(stop=np.array(["a"], dtype=object), stop_token_ids=np.array([7])).params[0]
    assert params.stop == ["a"] and params.stop_token_ids == [0, 2, 7]
    of_prompts = sampled(
        _prompts=2,
        temperature=np.array([0.5, 0.25]),
        allowed_token_ids=[np.array([5, 6]), np.array([7])],
        json_schema=np.array([{"enum": np.array([1, 2])}, {"type": "integer"}]),
        chat_template_kwargs={"documents": np.array(["a"])},
    )
    first, second = of_prompts.params
    assert (first.temperature, first.allowed_token_ids) == (0.5, [5, 6])
    assert (second.temperature, second.allowed_token_ids) == (0.25, [7])
    assert first.json_schema == sampled(json_schema={"enum": [1, 2]}).params[0].json_schema
    assert of_prompts.chat_template_kwargs == {"documents": ["a"]}


def test_ignore_eos_drops_the_models_ids_and_keeps_the_callers() -> None:
    params = sampled(ignore_eos=True, stop_token_ids=[7, 2]).params[0]
    assert sorted(params.stop_token_ids) == [2, 7] and params.ignore_eos is True


def test_min_tokens_above_max_tokens_is_refused_wherever_max_tokens_comes_from() -> None:
    assert refusal(min_tokens=9, max_tokens=8) == "min_tokens: 9 is above max_tokens, 8."
    assert sampled(min_tokens=8, max_tokens=8).params[0].min_tokens == 8
    assert refusal(config(response_length=8), min_tokens=9).startswith("min_tokens: 9 is above")
    both = refusal(_prompts=2, min_tokens=[8, 9], max_tokens=8)
    assert both == "min_tokens: 9 is above max_tokens, 8. (prompt 1)"


def test_answer_follows_one_grammar_a_prompt() -> None:
    schema = {"type": "integer"}
    assert fault(json_schema=schema, regex="a+").key == "regex"
    assert fault(_prompts=2, json_schema=[None, schema], regex="a+").index == 1
    first, second = sampled(_prompts=2, json_schema=[schema, None], regex=[None, "a+"]).params
    assert first.json_schema and first.regex is None
    assert second.json_schema is None and second.regex
    assert sampled().params[0].json_schema is None and sampled().params[0].regex is None


def test_true_scores_the_prompt_and_a_number_adds_the_likeliest_tokens() -> None:
    for value, likeliest in ((True, 0), (1, 1), (384, 384)):
        sampling = sampled(_prompts=2, n=2, prompt_logprobs=value)
        assert sampling.asks("prompt_logprobs") is True
        rows = [(each.prompt_logprobs, each.top_prompt_logprobs) for each in sampling.rows()]
        assert rows == [(True, likeliest)] * 4
        assert sampling.asks("top_prompt_logprobs") is (likeliest > 0)
    for without in (sampled(), sampled(prompt_logprobs=False)):
        assert not without.params[0].prompt_logprobs and not without.asks("prompt_logprobs")
    for value in (0, -2, 385):
        assert fault(prompt_logprobs=value).key == "prompt_logprobs"
    for odd in ("true", 1.0, [1, 2]):
        assert "is neither a bool nor an int" in refusal(prompt_logprobs=odd)
    shown = [effective_params({"prompt_logprobs": value}, DEFAULT) for value in (True, 3, False)]
    assert [each.get("prompt_logprobs") for each in shown] == [True, 3, None]
    assert not {"top_prompt_logprobs"} & shown[1].keys()


# ── Names, template keywords, and the value itself ───────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("temprature", "temperature"),
        ("stop_token_id", "stop_token_ids"),
        ("do sample", "do_sample"),
        ("xyzzy", None),
        ("", None),
        ("__class__", None),
    ],
)
def test_unknown_keyword_names_the_nearest(name: str, nearest: str | None) -> None:
    hint = f"; did you mean {nearest!r}?" if nearest else "."
    for value in (1, None):  # None hides no typing error
        assert refusal(**{name: value}) == f"{name}: generate() has no such parameter{hint}"


def test_prompts_are_cut_on_one_side_or_as_the_config_says() -> None:
    assert sampled(truncate_prompt="left").truncate_prompt == "left"
    assert sampled(truncate_prompt="right").truncate_prompt == "right"
    assert sampled(truncate_prompt=None).truncate_prompt is None is sampled().truncate_prompt
    for value in ("middle", "", True, 5, ["left"]):
        assert refusal(truncate_prompt=value).startswith(f"truncate_prompt: {value!r} is neither")


@pytest.mark.parametrize("name", TEMPLATE_OWN)
def test_template_keyword_that_the_engine_sets_is_refused(name: str) -> None:
    wrong = fault(chat_template_kwargs={"enable_thinking": True, name: False})
    assert wrong.key == f"chat_template_kwargs.{name}"
    for value in ([], [("a", 1)], "a", 3, {1: 2}, {"a": 1, 2: 3}):  # no mapping of names
        assert fault(chat_template_kwargs=value).key == "chat_template_kwargs"


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
