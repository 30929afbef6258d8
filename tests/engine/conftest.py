"""What tests of engines share."""

import pytest

from tests.support.engines import connected, engine_fixture
from tests.support.reference import Transformers
from tests.support.scripts import QUESTION
from tests.support.tiny import tiny_model


@pytest.fixture(scope="session")
def answer(tiny):
    """The right one to `QUESTION`."""
    return tiny.generate(**QUESTION).token_ids


hf = engine_fixture(scope="session", name="hf")


@pytest.fixture(scope="session")
def remote(tiny):
    """The tiny engine through its own `serve()`, with token ids."""
    model = tiny_model()
    with tiny.serve() as server:
        with connected(server.base_url, model, tokenizer_path=str(model)) as engine:
            yield engine


@pytest.fixture(scope="session")
def transformers():
    """The tiny model, called directly."""
    return Transformers.of(tiny_model())
