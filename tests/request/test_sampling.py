"""Keywords and the config become complete parameters; what cannot be served is refused by name."""

import numpy as np
import pytest

from _inf.parts.beams import Beams
from _inf.parts.typed import GenerateParams
from _inf.request.effective import effective_params
from _inf.types import SamplingParams
from tests.support.sampling import DEFAULT, config, fault, greedy, refusal, sampled

INTEGER = {"type": "integer"}

CONFIGURED = config(temperature=0.7, top_p=0.9, top_k=40, n=3, response_length=9, ignore_eos=True)


def test_request_without_keywords_is_what_the_config_says():
    sampling = sampled(CONFIGURED)
    own = {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "max_tokens": 9, "ignore_eos": True}
    assert sampling.params == [SamplingParams(**own, stop_token_ids=[])]
    assert (sampling.n, sampling.timeout, sampling.truncate_prompt) == (3, None, None)
    assert sampling.skip_special_tokens and sampling.chat_template_kwargs == {}
    assert sampled(CONFIGURED, **dict.fromkeys(GenerateParams.__annotations__)) == sampling


def test_every_keyword_wins_over_the_config():
    says = {"temperature": 0.5, "top_p": 0.25, "top_k": -1, "max_tokens": 10, "ignore_eos": False}
    sampling = sampled(CONFIGURED, n=1, **says)
    assert sampling.n == 1 and says.items() <= vars(sampling.params[0]).items()


@pytest.mark.parametrize(
    ("says", "params", "temperature"),
    [
        ({"do_sample": False}, {}, 0),
        ({"do_sample": False}, {"temperature": 0.3}, 0.3),
        ({"do_sample": False}, {"do_sample": True}, 1),
        ({"temperature": 0.7}, {"do_sample": False}, 0),
        # Below 1e-6 SGLang samples with top_k 1 at temperature 1, whose log probs are others.
        ({}, {"temperature": 9.9e-7}, 0),
        ({}, {"temperature": 1e-6}, 1e-6),
    ],
)
def test_greedy_is_temperature_zero_by_any_keyword(says, params, temperature):
    sampling = sampled(config(**says), **params)
    assert sampling.params[0].temperature == temperature
    assert greedy(sampling) == (temperature == 0)


ASKING = [{"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"seed": 0}, {"temperature": 0.7}]


@pytest.mark.parametrize("asked", ASKING, ids=str)
def test_what_asks_for_sampling_samples_and_is_refused_beside_greedy(asked):
    default = config(do_sample=False)
    assert sampled(default, **asked).params[0].temperature == asked.get("temperature", 1.0)
    [(name, value)] = asked.items()
    mixed = sampled(default, _prompts=2, **{name: [None, value]})
    assert [params.temperature > 0 for params in mixed.params] == [False, True]
    assert greedy(sampled(**{"do_sample": False, **asked, "temperature": 0}))  # which agrees
    says = f"do_sample: False means greedy, but {name}={value} is set too"
    assert refusal(do_sample=False, **asked).startswith(says)


def test_neutral_value_asks_for_nothing():
    for given in ({"top_p": 1}, {"top_k": -1}, {"min_p": 0}, {"max_tokens": 3}):
        assert greedy(sampled(config(do_sample=False), **given))
        assert greedy(sampled(do_sample=False, **given))


def test_samples_that_would_be_the_same_name_their_prompt():
    for one_answer in ({"temperature": 0}, {"top_k": 1}):
        assert "4 samples of prompt 0 are all the same" in sampled(n=4, **one_answer).same_samples
        assert not sampled(n=1, **one_answer).same_samples
    assert "prompt 1" in sampled(_prompts=2, n=2, temperature=[1, 0]).same_samples


def test_beams_are_greedy_each_row_has_its_own_and_they_suffice():
    says = config(temperature=0.7, do_sample=True)
    sampling = sampled(says, _prompts=2, num_beams=4, n=3)
    assert greedy(sampling) and not sampling.same_samples
    beams = [part.beam for params in sampling.rows if (part := params.of(Beams))]
    assert beams == [0, 1, 2] * 2
    assert sampled(says, num_beams=1).params[0].temperature == 0.7
    assert refusal(num_beams=2, do_sample=True).startswith("num_beams: beams are not sampled")
    assert fault(config(n=5), num_beams=4).key == "num_beams"


def test_stop_ids_join_the_models_eos_ids_each_once_and_in_order():
    assert sampled(stop_token_ids=[383, 7, 2, 7]).params[0].stop_token_ids == [0, 2, 7, 383]
    assert sampled().params[0].stop_token_ids == [0, 2]
    assert sampled(ignore_eos=True, stop_token_ids=[7, 2]).params[0].stop_token_ids == [2, 7]


def test_arrays_are_lists_wherever_a_keyword_takes_a_list():
    """As `pandas.read_parquet` gives them, whole columns of values per prompt too."""
    assert sampled(stop=np.array(["a"], dtype=object)).params[0].stop == ["a"]
    of_prompts = sampled(
        _prompts=2,
        temperature=np.array([0.5, 0.25]),
        allowed_token_ids=[np.array([5, 6]), np.array([7])],
        json_schema=np.array([{"enum": np.array([1, 2])}, INTEGER]),
        chat_template_kwargs={"documents": np.array(["a"])},
    )
    lists = sampled(
        _prompts=2,
        temperature=[0.5, 0.25],
        allowed_token_ids=[[5, 6], [7]],
        json_schema=[{"enum": [1, 2]}, INTEGER],
        chat_template_kwargs={"documents": ["a"]},
    )
    assert of_prompts.params == lists.params
    assert of_prompts.chat_template_kwargs == lists.chat_template_kwargs


MASK = {"sampling_mask": True, "top_k": 3}


@pytest.mark.parametrize(
    ("params", "key", "agree"),
    [
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", {"min_tokens": 8}),
        ({"json_schema": {}, "regex": "a"}, "regex", {"regex": None}),
        ({"num_beams": 2, "regex": "a"}, "num_beams", {"num_beams": 1}),
        ({"logprob_token_ids": [5, 6], "logprobs": 3}, "logprobs", {"logprobs": 2}),
        ({"thinking_token_budget": 3, "regex": "a"}, "thinking_token_budget", {"regex": None}),
        ({"sampling_mask": True}, "sampling_mask", {"top_k": 3}),
        (
            {**MASK, "temperature": 0},
            "sampling_mask",
            {"temperature": 1},
        ),
        ({**MASK, "logprobs": 2}, "sampling_mask", {"logprobs": 0}),
        (
            {**MASK, "logprob_token_ids": [5]},
            "sampling_mask",
            {"logprob_token_ids": None},
        ),
        # These are the EOS ids.
        ({"allowed_token_ids": [2, 0], "min_tokens": 1}, "min_tokens", {"min_tokens": 0}),
    ],
)
def test_keywords_that_contradict_each_other_are_refused_by_one_of_them(params, key, agree):
    assert fault(**params).key == key
    sampled(**{**params, **agree})


def test_prompt_logprobs_are_shown_as_they_were_asked_for():
    shown = [effective_params({"prompt_logprobs": value}, DEFAULT) for value in (True, 3, False)]
    assert [each.get("prompt_logprobs") for each in shown] == [True, 3, None]


@pytest.mark.parametrize(("name", "nearest"), [("temprature", "temperature"), ("", None)])
def test_unknown_keyword_names_the_nearest(name, nearest):
    hint = f"; did you mean {nearest!r}?" if nearest else "."
    for value in (1, None):  # None hides no typing error
        assert refusal(**{name: value}) == f"{name}: unknown keyword{hint}"
