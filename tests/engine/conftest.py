"""What tests of engines share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inf import InferenceEngine
from tests.support.check_references import hf as started_on_hf
from tests.support.reference import Transformers
from tests.support.scripts import QUESTION, TINY
from tests.support.tiny import tiny_model


@pytest.fixture(scope="session")
def answer(tiny: InferenceEngine) -> list[list[int]]:
    """The right one to `QUESTION`."""
    return tiny.generate(**QUESTION).token_ids


@pytest.fixture(scope="session")
def hf() -> Iterator[InferenceEngine]:
    """The tiny model on Transformers, in this process."""
    with started_on_hf(tiny_model()) as engine:
        yield engine


@pytest.fixture(scope="session")
def remote(tiny: InferenceEngine) -> Iterator[InferenceEngine]:
    """The tiny engine through its own `serve()`, with token ids."""
    model = str(tiny_model())
    lengths = {name: TINY[name] for name in ("prompt_length", "response_length")}
    with tiny.serve() as server:
        with InferenceEngine(
            base_url=server.base_url,
            model_path=model,
            tokenizer_path=model,
            rollout={"name": "openai", **lengths},
        ) as engine:
            yield engine


@pytest.fixture(scope="session")
def transformers() -> Transformers:
    """The tiny model, called directly."""
    return Transformers.of(tiny_model())
