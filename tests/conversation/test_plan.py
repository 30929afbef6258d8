"""Keywords that a conversation cannot serve are refused by name, with fitting advice."""

from __future__ import annotations

from typing import Any

import pytest

from _inf.conversation.turn_plan import check_turns
from _inf.errors import ConfigError
from _inf.request.sampling import Sampling
from _inf.turns import TurnOptions
from _inf.types import SamplingParams, Tool

NAG = {"nag": object()}


def asking(*interactions: dict[str, Any], **params: Any) -> Sampling:
    """A call with one prompt for each of these `interaction_kwargs`."""
    turns = [TurnOptions(interaction_kwargs=each) for each in interactions]
    asked = frozenset([*params, *(["interaction_kwargs"] if any(interactions) else [])])
    return Sampling(1, [SamplingParams(max_tokens=5)] * len(turns), turns, asked)


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"nam": "nag"}, r"name: 'gsm8k', the default beside nam, is not an .* are nag\."),
        ({"name": "nga"}, r"name: 'nga' is not an interaction; the interactions are nag\."),
        ({"name": ["nag"]}, r"name: \['nag'\] is not an interaction"),
    ],
)
def test_unknown_interaction_is_named_as_the_caller_wrote_it(kwargs, says):
    check_turns(asking({"ground_truth": "7"}), {}, {"gsm8k": object()})  # verl's default
    with pytest.raises(ConfigError, match=rf"^interaction_kwargs\.{says}"):
        check_turns(asking(kwargs), {}, NAG)


@pytest.mark.parametrize(
    ("interaction", "cause", "advice"),
    [
        ({}, "tools (weather)", "pass tools=[]"),
        (
            {"name": "nag"},
            "tools (weather) and interaction_kwargs",
            "pass tools=[] and leave interaction_kwargs out",
        ),
    ],
)
def test_advice_for_one_turn_fits_what_makes_more_of_them(interaction, cause, advice):
    with pytest.raises(ConfigError) as refused:
        check_turns(asking({}, interaction, regex="a"), {"weather": Tool("weather", {})}, NAG)
    assert str(refused.value) == f"regex: cannot be used with {cause}; {advice}."
