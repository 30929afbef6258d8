"""Lengths that nobody set follow the model's context; those that were set stay as they are."""

from __future__ import annotations

import pickle

import pytest

from _inf.backends.model_info import limits_of, with_limits
from _inf.config import Config, load_config


def lengths(config: Config, longest: int | None) -> tuple[int, int, int]:
    """Of a prompt, an answer, and both."""
    limits = limits_of(config, 100, longest)
    rollout = with_limits(config, limits).rollout
    assert rollout.prompt_length == limits.prompt
    return rollout.prompt_length, rollout.response_length, limits.total


@pytest.mark.parametrize(
    ("source", "overrides", "longest", "expected"),
    [
        (None, {}, 1000, (800, 200, 1000)),
        (None, {}, None, (2048, 512, 2560)),
        ({"model_path": "another"}, {}, 1000, (500, 500, 1000)),
        (None, {"rollout": {"max_model_len": 1100}}, None, (512, 512, 1100)),
        ({"rollout": {"prompt_length": 700}}, {}, 1000, (700, 300, 1000)),
        # As they were set, so that the start refuses them.
        (
            None,
            {"rollout": {"prompt_length": 2048, "response_length": 512}},
            1000,
            (2048, 512, 2560),
        ),
        (None, {"rollout": {"max_model_len": 3000}}, 1000, (2048, 512, 3000)),
    ],
)
def test_lengths_that_nobody_set_fit_the_longest_row(source, overrides, longest, expected):
    assert lengths(load_config(source, overrides), longest) == expected


def test_config_that_is_given_on_says_which_lengths_were_set():
    read = load_config(None, {"rollout": {"response_length": 100}})
    for again in (load_config(read, {}), load_config(pickle.loads(pickle.dumps(read)), {})):
        assert again == read and lengths(again, 1000) == (900, 100, 1000)
    assert lengths(load_config(read, {"rollout": {"prompt_length": 950}}), 1000)[2] == 1050
    assert lengths(load_config(read.to_dict(), {}), 1000)[2] == 2148  # a mapping sets its keys


def test_prompts_are_cut_where_the_config_says_it():
    for side in ("left", "right", None):
        assert limits_of(load_config({"truncate_prompt": side}, {}), 100, 1000).truncate == side
