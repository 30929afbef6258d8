"""`free_cache_engine` empties the prefix cache after each call, though the scheduler is late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from _inf.backends.verl import launch_sglang
from inf import InferenceEngine
from tests.support.prompts import as_ids, token_prompts
from tests.support.running import begun
from tests.support.schedulers import in_flight
from tests.support.scripts import until
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.verl

LATE: dict[str, Any] = {"prompt_length": 512, "response_length": 128, "free_cache_engine": True}
PROMPT, ANOTHER = as_ids(token_prompts(2, 40, seed=77, shortest=40))


@pytest.fixture(scope="module")
def late(tiny: InferenceEngine) -> Iterator[InferenceEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_sglang, "SETUP", "tests.support.slow_scheduler:set_up")
        rollout = {"dtype": "float32", "enforce_eager": True, **LATE}
        engine = InferenceEngine(model_path=str(tiny_model()), rollout=rollout)
    with engine:
        yield engine


def cached(engine: InferenceEngine) -> int:
    """How many tokens of the prompt an earlier call has left."""
    return int(engine.generate(PROMPT, max_tokens=2).metadata[0]["cached_tokens"])


def test_flush_before_the_scheduler_comes_round_is_tried_again(late: InferenceEngine) -> None:
    """Also after streams and scores."""
    assert [cached(late) for _ in range(12)] == [0] * 12
    list(late.stream(PROMPT, max_tokens=2))
    assert cached(late) == 0
    late.get_logprobs(PROMPT, [[5, 6]])
    assert cached(late) == 0


def test_call_that_ends_beside_another_does_not_wait_and_the_last_one_flushes(
    late: InferenceEngine,
) -> None:
    long = begun(lambda: late.generate(ANOTHER, max_tokens=60, ignore_eos=True))
    assert until(lambda: in_flight(late) > 0, 20)
    late.generate(PROMPT, max_tokens=1)
    assert not long.done()
    long.result(60)
    assert cached(late) == 0
