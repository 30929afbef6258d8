"""A verl checkpoint with a PEFT adapter is merged and served."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from _inf.models.resolve import resolve_model
from inf import InferenceEngine
from tests.support.tiny import tiny_model
from tests.support.trained import adapter, loaded, verl_checkpoint

pytestmark = [pytest.mark.verl, pytest.mark.slow]

IDS = torch.arange(5, 60)[None]


def test_engine_serves_a_checkpoint_with_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_model()  # where it is shared
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    step = tmp_path / "global_step_7"
    verl_checkpoint(step, fsdp=1)
    peft = adapter(resolve_model(str(step)), tmp_path / "adapter")
    settings = {"dtype": "float32", "prompt_length": 64, "response_length": 32}
    with InferenceEngine(model_path=str(step), adapter_path=str(peft), rollout=settings) as engine:
        assert engine.model_config.local_path == str(
            resolve_model(str(step), adapter_path=str(peft))
        )
        prompt, answer = IDS[0, :20].tolist(), IDS[0, 20:].tolist()
        ours = engine.get_logprobs({"prompt_token_ids": prompt}, [answer])[0]
    merged = loaded(engine.model_config.local_path, dtype=torch.float32)
    with torch.no_grad():
        table = torch.log_softmax(merged(IDS).logits[0, 19:-1], dim=-1)
    assert ours == pytest.approx(table[torch.arange(len(answer)), answer].tolist(), abs=1e-3)
