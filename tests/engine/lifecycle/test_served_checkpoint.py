"""A verl checkpoint with a PEFT adapter is merged and served."""

import pytest
import torch

from _inf.models.resolve import resolve_model
from tests.support.engines import started
from tests.support.reference import logprobs
from tests.support.tiny import tiny_model
from tests.support.trained import adapter, loaded, verl_checkpoint

pytestmark = [pytest.mark.verl, pytest.mark.slow]

IDS = [*range(5, 60)]


def test_engine_serves_a_checkpoint_with_an_adapter(tmp_path, monkeypatch):
    tiny_model()  # where it is shared
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    step = tmp_path / "global_step_7"
    verl_checkpoint(step, fsdp=1)
    config = {"adapter_path": str(tmp_path / "adapter")}
    adapter(resolve_model(str(step)), tmp_path / "adapter")
    with started(step, name="hf", config=config) as engine:
        folder = str(engine.model_folder)
        ours = engine.get_logprobs({"prompt_token_ids": IDS[:20]}, [IDS[20:]])[0]
    assert folder == str(resolve_model(str(step), **config))
    merged = loaded(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = merged(torch.tensor([IDS])).logits[0, 19:-1]
    assert ours == pytest.approx(logprobs(logits, IDS[20:]), abs=1e-3)
