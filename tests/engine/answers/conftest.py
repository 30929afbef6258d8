"""What tests of answers share: the backends, each on the tiny model."""

from __future__ import annotations

import pytest

from inf import InferenceEngine

BACKENDS = {"sglang": "tiny", "hf": "hf", "openai": "remote"}


@pytest.fixture(params=BACKENDS)
def backend(request):
    engine: InferenceEngine = request.getfixturevalue(BACKENDS[request.param])
    return engine


@pytest.fixture(params=["sglang", "hf"])
def local(request):
    engine: InferenceEngine = request.getfixturevalue(BACKENDS[request.param])
    return engine
