"""One value a prompt, and each sample's own seed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from _inf.request import keywords
from _inf.request.keywords import GenerateParams
from _inf.request.sampling import Sampling
from _inf.request.seeds import MAX_SEED, prompt_seed, sample_seed, turn_seed
from _inf.types import TurnOptions
from tests.support.sampling import DEFAULT, fault, greedy, refusal, sampled

PER_CALL = keywords.PER_CALL.keys()
LISTS = {name for name, keyword in keywords.PER_PROMPT.items() if keyword.is_list}
TURNS = {field.name for field in dataclasses.fields(TurnOptions)}


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
    "allowed_token_ids": ([7], [8, 9]),
    "bad_words": (["a", "b"], ["b"]),
    "logprob_token_ids": ([7, 8], [9]),
    "thinking_token_budget": (0, 7),
    "repetition_detection": (
        {"max_pattern_size": 2, "min_pattern_size": 1, "min_count": 2},
        {"max_pattern_size": 3, "min_pattern_size": 2, "min_count": 4},
    ),
    "regex": ("a+", "b+"),
    "adapter": ("first", "second"),
}


def test_every_parameter_that_is_not_the_calls_may_differ_by_prompt() -> None:
    assert PER_PROMPT.keys() == keywords.PER_PROMPT.keys() - TURNS
    assert GenerateParams.__annotations__.keys() - PER_PROMPT.keys() - TURNS == set(PER_CALL)


@pytest.mark.parametrize("name", PER_PROMPT)
def test_list_gives_each_prompt_its_value_and_none_the_configs(name: str) -> None:
    first, second = PER_PROMPT[name]
    expected = [*sampled(**{name: first}).params, *sampled().params]
    expected += sampled(**{name: second}).params
    assert expected[0] != expected[1]
    for values in ([first, None, second], (first, None, second)):
        assert sampled(_prompts=3, **{name: values}).params == expected
    assert sampled(**{name: [first]}) == sampled(**{name: first})
    assert sampled(_prompts=2, **{name: [None, None]}) == sampled(_prompts=2)
    if name != "seed":  # of which each prompt gets its own
        assert sampled(_prompts=3, **{name: first}).params == [expected[0]] * 3


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
        assert fault(_prompts=2, **{name: value}).key == name


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


def test_lists_and_single_values_combine_prompt_by_prompt() -> None:
    sampling = sampled(_prompts=3, temperature=[0, 0.5, None], max_tokens=[3, None, 5], top_k=9)
    assert [params.temperature for params in sampling.params] == [0, 0.5, 1]
    assert [params.max_tokens for params in sampling.params] == [3, DEFAULT.response_length, 5]
    assert {params.top_k for params in sampling.params} == {9}
    assert not greedy(sampling) and greedy(sampled(_prompts=2, temperature=[0, 0.0]))
    wrong = fault(_prompts=3, do_sample=[False, True, False], temperature=[0, 0.5, 0.5])
    assert (wrong.key, wrong.index) == ("do_sample", 2)


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
    own = [[seed, sample_seed(seed, 1), sample_seed(seed, 2)] for seed in (7, 8)]
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
    wanted = [7, sample_seed(7, 1), second, sample_seed(second, 1)]
    assert seeds(sampled(_prompts=2, n=2, seed=7)) == wanted
    assert seeds(sampled(_prompts=2, n=2, seed=7, temperature=[0.5, 0.7])) == wanted
    assert seeds(sampled(_prompts=2, n=2, seed=[7, 7])) == wanted[:2] * 2


def test_neighbouring_seeds_of_many_prompts_have_none_in_common() -> None:
    both = [prompt_seed(seed, index) for seed in (7, 8) for index in range(1000)]
    assert len(set(both)) == 2000 and all(0 <= each < MAX_SEED for each in both)


@pytest.mark.parametrize("seed", [0, 7, MAX_SEED - 1])
def test_derived_seeds_are_seeds_and_meet_no_neighbours(seed: int) -> None:
    derived = [sample_seed(seed, sample) for sample in range(200)]
    assert derived[0] == seed and len({*derived, seed + 1, seed - 1}) == 202
    assert not {*derived[1:]} & {sample_seed(seed + 1, sample) for sample in range(200)}
    for each in derived:
        assert sampled(seed=each).params[0].seed == each


def test_derived_seeds_are_the_same_in_every_process_and_version() -> None:
    assert sample_seed(7, 1) == 4228751037375301439
    assert turn_seed(7, 1) == 2568442753100389352 and turn_seed(7, 0) == 7
    assert prompt_seed(None, 1) is sample_seed(None, 1) is turn_seed(None, 1) is None
