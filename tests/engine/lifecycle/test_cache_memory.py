"""The memory of a KV cache on a CPU, which is taken when it is written first."""

from __future__ import annotations

import pytest

from _inf.backends.verl.kv_memory import token_bytes
from _inf.runtime import free_memory
from inf import InferenceEngine
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.verl

TOKENS = 1_500_000


def test_start_sees_what_running_engines_have_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = {"dtype": "float32", "prompt_length": 64, "response_length": 16}
    size = {"engine_kwargs": {"sglang": {"max_total_tokens": TOKENS}}}
    with InferenceEngine(
        model_path=str(tiny_model()), device="cpu", rollout=rollout | size
    ) as engine:
        token = token_bytes(engine.model_config.hf_config, engine.config)
        folder = engine._backend.host.folder  # type: ignore[attr-defined]
        monkeypatch.setattr(free_memory, "PREFIX", folder.name)  # of no other engine
        [unwritten] = free_memory._unwritten()
        assert token is not None and unwritten == pytest.approx(TOKENS * token, rel=0.2)
    assert not list(free_memory._unwritten())
