"""Keywords that a conversation cannot serve are refused by name, with fitting advice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from _inf.conversation.plan import _check_turns, _refuse_beside
from _inf.errors import ConfigError
from _inf.types import TurnOptions


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"nam": "nag"}, r"the key 'name' is missing \('nam' is given\); the interactions are nag"),
        ({"x": 1}, r"the key 'name' is missing; the interactions are nag\."),
        ({"name": "nga"}, r"interaction_kwargs\.name: 'nga' is not an interaction; .* are nag\."),
        ({"name": ["nag"]}, r"interaction_kwargs\.name: \['nag'\] is not an interaction"),
    ],
)
def test_unknown_interaction_is_named_as_the_caller_wrote_it(
    kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        _check_turns(TurnOptions(interaction_kwargs=kwargs), {}, {"nag": object()})


def test_interaction_without_a_name_is_verls_gsm8k() -> None:
    _check_turns(TurnOptions(interaction_kwargs={"ground_truth": "7"}), {}, {"gsm8k": object()})


@pytest.mark.parametrize(
    ("tools", "interaction", "says"),
    [
        (["weather"], {}, "regex: cannot be used with tools (weather); pass tools=[]."),
        (
            [],
            {"name": "nag"},
            "regex: cannot be used with interaction_kwargs; leave interaction_kwargs out.",
        ),
        (
            ["weather"],
            {"name": "nag"},
            "regex: cannot be used with tools (weather) and interaction_kwargs; "
            "pass tools=[] and leave interaction_kwargs out.",
        ),
    ],
)
def test_advice_for_one_turn_fits_what_makes_more_of_them(
    tools: list[str], interaction: dict[str, Any], says: str
) -> None:
    sampling: Any = SimpleNamespace(
        turns=[TurnOptions(), TurnOptions(interaction_kwargs=interaction)]
    )
    with pytest.raises(ConfigError) as refused:
        _refuse_beside("regex", tools, sampling)
    assert str(refused.value) == says
