"""What the tests share: one engine on the embedded model, one on a tiny one, for the whole session.

A test that breaks an engine starts its own, on a tiny model.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiny import tiny_model

from inf import InferenceEngine

TINY = {"dtype": "float32", "prompt_length": 512, "response_length": 128, "enforce_eager": True}


@pytest.fixture(scope="session")
def engine() -> Iterator[InferenceEngine]:
    """The embedded default."""
    with InferenceEngine() as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny() -> Iterator[InferenceEngine]:
    """A random tiny Qwen3: fast, and its greedy answers wander."""
    with InferenceEngine(model_path=str(tiny_model()), rollout=TINY) as engine:
        yield engine
