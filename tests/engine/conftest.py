"""What tests of engines share."""

from __future__ import annotations

import pytest

from inf import InferenceEngine
from tests.support.scripts import QUESTION


@pytest.fixture(scope="session")
def answer(tiny: InferenceEngine) -> list[list[int]]:
    """The right one to `QUESTION`."""
    return tiny.generate(**QUESTION).token_ids
