"""What is said of a keyword in its row and in its field agrees."""

from __future__ import annotations

import dataclasses

import pytest

from _inf.backends.features import FEATURES
from _inf.backends.registry import MODES
from _inf.parts.found import PARTS
from _inf.request.keywords import KEYWORDS, PER_PROMPT
from _inf.request.sampling import Sampling
from _inf.turns import TurnOptions
from _inf.types import SamplingParams


def fields(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_every_keyword_is_a_field_of_what_is_resolved_and_no_table_has_others():
    assert FEATURES.keys() == frozenset().union(*(mode.supports for mode in MODES))
    of_parts = {name for part in PARTS for name in part.keywords}
    resolved = fields(SamplingParams) | fields(TurnOptions) | fields(Sampling) | of_parts
    assert KEYWORDS.keys() - resolved == {"do_sample"}  # it becomes a temperature
    assert fields(TurnOptions) <= PER_PROMPT.keys()


@pytest.mark.parametrize("name", KEYWORDS)
def test_neutral_value_is_one_that_the_keyword_takes(name):
    keyword = KEYWORDS[name]
    if keyword.feature:
        neutral = FEATURES[keyword.feature][name]
        assert neutral is None or keyword.checked(name, neutral) == neutral
