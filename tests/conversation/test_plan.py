"""Keywords that a conversation cannot serve are refused by name, with fitting advice."""

from __future__ import annotations

from typing import Any

import pytest

from _inf.conversation.turn_plan import check_turns, prompt_rules
from _inf.errors import ConfigError
from _inf.request.sampling import Sampling
from _inf.turns import TurnOptions
from _inf.types import SamplingParams, Tool
from tests.support.conversation_rules import rules

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
def test_unknown_interaction_is_named_as_the_caller_wrote_it(
    kwargs: dict[str, Any], says: str
) -> None:
    check_turns(asking({"ground_truth": "7"}), {}, {"gsm8k": object()})  # verl's default
    with pytest.raises(ConfigError, match=rf"^interaction_kwargs\.{says}"):
        check_turns(asking(kwargs), {}, NAG)


TOOLS = "pass tools=[]"
INTERACTION = "leave interaction_kwargs out"


@pytest.mark.parametrize(
    ("tools", "interaction", "cause", "advice"),
    [
        (["weather"], {}, "tools (weather)", TOOLS),
        (
            ["weather"],
            {"name": "nag"},
            "tools (weather) and interaction_kwargs",
            f"{TOOLS} and {INTERACTION}",
        ),
    ],
)
def test_advice_for_one_turn_fits_what_makes_more_of_them(
    tools: list[str], interaction: dict[str, Any], cause: str, advice: str
) -> None:
    by_name = {name: Tool(name, {}) for name in tools}
    with pytest.raises(ConfigError) as refused:
        check_turns(asking({}, interaction, regex="a"), by_name, NAG)
    assert str(refused.value) == f"regex: cannot be used with {cause}; {advice}."


def test_a_prompt_has_the_tools_that_it_names_in_their_order() -> None:
    tools = {name: Tool(name, {}) for name in ("a", "b", "c")}
    named = (None, {}, {"c": {}, "a": {}}, {"c": {}, "a": {}}, {"a": {}, "c": {}})
    turns = [TurnOptions(tools_kwargs=each) for each in named]
    sampling = Sampling(1, [SamplingParams(max_tokens=5)] * len(turns), turns)
    found = prompt_rules(rules(None, None, tools=tools), sampling, [])
    assert [[*each.tools] for each in found] == [[*"abc"], [], [*"ca"], [*"ca"], [*"ac"]]
    assert found[2] is found[3]
