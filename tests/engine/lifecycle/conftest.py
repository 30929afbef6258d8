"""An engine that takes new weights: several tests end it, and the next one has it restarted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from _inf.runtime.extras import has_verl
from inf import InferenceEngine
from tests.support.scripts import HANG_SECONDS
from tests.support.tiny import tiny_model
from tests.support.updates import trained

SETTINGS: dict[str, Any] = {"dtype": "float32", "prompt_length": 1000, "response_length": 256}
SETTINGS |= {"max_model_len": 2000, "enforce_eager": True}
if has_verl():  # several buckets; and prompts that are computed in part
    SETTINGS |= {"update_weights_bucket_megabytes": 1, "max_num_batched_tokens": 128}


@pytest.fixture(scope="session")
def _updated() -> Iterator[InferenceEngine]:
    folder = tiny_model(layers=12, tied=True, initializer_range=0.15)
    asked = {"hang_timeout": HANG_SECONDS} if has_verl() else {}
    with InferenceEngine(model_path=str(folder), rollout=SETTINGS, **asked) as engine:
        yield engine


@pytest.fixture(scope="session")
def models(_updated: InferenceEngine) -> list[Any]:
    """Three of its shape."""
    return [trained(_updated, seed) for seed in (200, 201, 202)]


@pytest.fixture
def updated(_updated: InferenceEngine) -> InferenceEngine:
    """Twelve layers, 2 MB: several buckets. Its head is its embeddings."""
    if _updated.dead:
        _updated.restart()
    _updated.resume()
    return _updated


@pytest.fixture
def old(updated: InferenceEngine, models: list[Any]) -> int:
    """The first model is served; its version."""
    return updated.update_weights(models[0])
