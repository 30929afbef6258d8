"""An engine whose scheduler is spawned, as on a GPU, and not forked from the fork server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from _inf.backends.verl import launch_sglang
from inf import EngineDeadError, InferenceEngine
from tests.support.scripts import GONE_SECONDS, QUESTION, SETTINGS, until
from tests.support.tiny import tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.verl]  # a start with all its imports, twice
PARAMETERS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0, "seed": 7, "top_p": 0.9, "repetition_penalty": 1.2},
    {"temperature": 1.0, "seed": 8, "regex": "[ab]{4}c"},
)


@pytest.fixture(scope="module")
def spawned() -> Iterator[InferenceEngine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_sglang, "_fork_server", lambda *args: None)
        with InferenceEngine(model_path=str(tiny_model()), rollout=SETTINGS) as engine:
            yield engine


def rows(engine: InferenceEngine) -> list[tuple[list[int], str]]:
    outputs = [engine.generate("Say something.", max_tokens=12, **each) for each in PARAMETERS]
    return [(out.token_ids[0], out.metadata[0]["finish_reason"]) for out in outputs]


def test_spawned_scheduler_answers_as_a_forked_one(
    spawned: InferenceEngine, tiny: InferenceEngine
) -> None:
    """With everything that our patches and request parameters do there."""
    host = spawned.rollout.host
    assert host.fork_server is None and tiny.rollout.host.fork_server is not None
    assert rows(spawned) == rows(tiny)


def test_new_weights_reach_a_spawned_scheduler(
    spawned: InferenceEngine, tiny: InferenceEngine
) -> None:
    """They are sent in shared memory, which a process must be allowed to open."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    given = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for tensor in given.values():
        tensor.mul_(1.5)
    spawned.update_weights(given)
    changed = spawned.generate(**QUESTION)
    assert changed.token_ids != tiny.generate(**QUESTION).token_ids
    assert changed.metadata[0]["weight_version"] == 1
    spawned.update_weights(model, version=2)
    assert spawned.generate(**QUESTION).token_ids == tiny.generate(**QUESTION).token_ids


def test_killed_spawned_scheduler_is_an_exception_and_restarts(
    spawned: InferenceEngine, tiny: InferenceEngine
) -> None:
    [child] = spawned.rollout.host.children
    process = psutil.Process(child.pid)
    process.kill()
    with pytest.raises(EngineDeadError, match="exit code -9"):
        spawned.generate(**QUESTION)
    spawned.restart()
    assert spawned.generate(**QUESTION).token_ids == tiny.generate(**QUESTION).token_ids
    [child] = spawned.rollout.host.children
    process = psutil.Process(child.pid)
    spawned.shutdown()
    assert until(lambda: not process.is_running(), GONE_SECONDS)
