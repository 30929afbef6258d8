"""What tests of answers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inf import InferenceEngine
from tests.support.reference import Reference


@pytest.fixture(scope="session")
def reference(engine: InferenceEngine) -> Iterator[Reference]:
    """The embedded model on the backend `hf`."""
    found = Reference.of(engine)
    yield found
    found.engine.shutdown()
