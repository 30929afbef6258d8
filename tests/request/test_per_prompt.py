"""How values of one prompt and of the call combine, and each sample's own seed."""

from __future__ import annotations

from _inf.request.sampling import Sampling
from _inf.request.seeds import prompt_seed, sample_seed, turn_seed
from tests.support.sampling import asked, fault, sampled


def test_keywords_are_held_against_each_other_prompt_by_prompt():
    wrong = fault(_prompts=3, do_sample=[False, True, False], temperature=[0, 0.5, 0.5])
    assert (wrong.key, wrong.index) == ("do_sample", 2)
    assert fault(_prompts=2, min_tokens=[8, 9], max_tokens=8).index == 1
    schema = {"type": "integer"}
    first, second = sampled(_prompts=2, json_schema=[schema, None], regex=[None, "a+"]).params
    assert [*asked(first)] == ["json_schema"] and [*asked(second)] == ["regex"]


def seeds(sampling: Sampling) -> list[int | None]:
    return [params.seed for params in sampling.rows]


def test_samples_are_prompt_major_and_each_has_its_own_seed():
    sampling = sampled(_prompts=3, n=3, seed=[7, None, 8], max_tokens=[3, 4, 5])
    own = [[seed, sample_seed(seed, 1), sample_seed(seed, 2)] for seed in (7, 8)]
    assert seeds(sampling) == [*own[0], None, None, None, *own[1]]
    assert [params.max_tokens for params in sampling.rows] == [3] * 3 + [4] * 3 + [5] * 3
    assert own[0][0] == 7 and len({*own[0], *own[1]}) == 6


def test_one_seed_for_all_prompts_gives_each_prompt_its_own_and_the_first_the_seed_itself():
    second = (7 + 0x9E3779B97F4A7C15) % 2**63
    assert prompt_seed(7, 1) == second
    wanted = [7, sample_seed(7, 1), second, sample_seed(second, 1)]
    assert seeds(sampled(_prompts=2, n=2, seed=7)) == wanted
    assert seeds(sampled(_prompts=2, n=2, seed=[7, 7])) == wanted[:2] * 2


def test_derived_seeds_are_the_same_in_every_process_and_version():
    assert sample_seed(7, 1) == 4228751037375301439
    assert turn_seed(7, 1) == 2568442753100389352 and turn_seed(7, 0) == 7
    assert prompt_seed(None, 1) is sample_seed(None, 1) is turn_seed(None, 1) is None
