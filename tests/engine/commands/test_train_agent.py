"""`examples/train_agent.py`, two steps of it, on a tiny model."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from inf import InferenceEngine
from tests.support.tiny import tiny_model

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_agent.py"


def test_two_steps_train_on_what_the_agent_sampled(mortal: InferenceEngine) -> None:
    program = runpy.run_path(str(EXAMPLE))
    model = AutoModelForCausalLM.from_pretrained(tiny_model(), dtype=torch.float32)
    seen = []

    def spy(trained: torch.nn.Module, optimizer: object, batch: object, worth: object) -> None:
        """Any reward will do: a random model gets none."""
        seen.append(batch)
        mask = batch.batch["response_mask"]
        learn(trained, optimizer, batch, torch.randn(len(mask), 1).expand(mask.shape))

    grpo = program["train"].__globals__["GRPO"]
    learn, grpo["learn"] = grpo["learn"], spy
    try:
        curve = program["train"](mortal, model, 2, 1e-3)
    finally:
        mortal.update_weights(AutoModelForCausalLM.from_pretrained(tiny_model()))  # the folder's
    rows = len(program["PRICES"]) * program["SAMPLES"]
    assert len(curve) == 2 and all(0 <= reward <= 1 for reward in curve)
    assert [len(batch) for batch in seen] == [rows, rows]
    versions = [set(batch.non_tensor_batch["weight_version"]) for batch in seen]
    assert [len(each) for each in versions] == [1, 1] and versions[0] != versions[1]
    assert len(set(seen[0].non_tensor_batch["uid"])) == len(program["PRICES"])
