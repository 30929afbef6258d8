"""An engine that takes new weights: several tests end it, and the next one has it restarted."""

import pytest

from _inf.runtime.extras import has_verl
from tests.support.engines import engine_fixture
from tests.support.scripts import HANG_SECONDS
from tests.support.updates import trained, twelve_layers

SETTINGS = {"prompt_length": 1000, "response_length": 256}
SETTINGS |= {"max_model_len": 2000, "enforce_eager": True}
if has_verl():  # several buckets; and prompts that are computed in part
    SETTINGS |= {"update_weights_bucket_megabytes": 1, "max_num_batched_tokens": 128}
    SETTINGS |= {"config": {"hang_timeout": HANG_SECONDS}}


_updated = engine_fixture(twelve_layers, scope="session", **SETTINGS)


@pytest.fixture(scope="session")
def models(_updated):
    """Three of its shape."""
    return [trained(_updated, seed) for seed in (200, 201, 202)]


@pytest.fixture
def updated(_updated):
    """Alive, and not paused."""
    if _updated.dead:
        _updated.restart()
    _updated.resume()
    return _updated


@pytest.fixture
def old(updated, models):
    """The first model is served; its version."""
    return updated.update_weights(models[0])
