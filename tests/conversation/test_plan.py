"""Keywords that a conversation cannot serve are refused by name, with fitting advice."""

import pytest

from inf import ConfigError
from tests.support.refusals import refused
from tests.support.tool_calling import CALCULATOR


@pytest.fixture
def nagged(caller, monkeypatch):
    """An engine whose config names one interaction."""
    monkeypatch.setattr(caller._configured, "interactions", {"nag": object()})
    return caller


@pytest.mark.parametrize(
    ("kwargs", "says"),
    [
        ({"nam": "nag"}, r"name: 'gsm8k', the default next to nam, is not an .* are nag\."),
        ({"name": "nga"}, r"name: 'nga' is not an interaction; the interactions are nag\."),
    ],
)
def test_unknown_interaction_is_named_as_the_caller_wrote_it(nagged, kwargs, says):
    with refused(ConfigError, rf"^interaction_kwargs\.{says}"):
        nagged.generate("Hi", tools=[], interaction_kwargs=kwargs)


@pytest.mark.parametrize(
    ("interaction", "says"),
    [
        (None, r"tools \(calculator\); pass tools=\[\]"),
        (
            {"name": "nag"},
            r"tools \(calculator\) and interaction_kwargs; "
            r"pass tools=\[\] and leave interaction_kwargs out",
        ),
    ],
)
def test_advice_for_one_turn_fits_what_makes_more_of_them(nagged, interaction, says):
    asked = {"tools": [CALCULATOR], "interaction_kwargs": [None, interaction], "regex": "a"}
    with refused(ConfigError, rf"^regex: cannot be used with {says}\.$"):
        nagged.generate(["Hi", "Hi"], **asked)
