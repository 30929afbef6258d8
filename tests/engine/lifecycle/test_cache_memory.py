"""The memory of a KV cache on a CPU, which is taken when it is written first."""

import pytest

from _inf.backends.verl.kv_memory import token_bytes
from _inf.runtime import free_memory
from tests.support.engines import started

pytestmark = pytest.mark.verl

TOKENS = 1_500_000


def test_start_sees_what_running_engines_have_reserved(monkeypatch):
    size = {"sglang": {"max_total_tokens": TOKENS}}
    with started(config={"device": "cpu"}, engine_kwargs=size) as engine:
        token = token_bytes(engine.model_config.hf_config, engine.config)
        folder = engine._backend.host.folder  # type: ignore[attr-defined]
        monkeypatch.setattr(free_memory, "PREFIX", folder.name)  # of no other engine
        [unwritten] = free_memory._unwritten()
        assert unwritten == pytest.approx(TOKENS * token, rel=0.2)
    assert not list(free_memory._unwritten())
