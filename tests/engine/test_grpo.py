"""`examples/grpo.py`, three steps of it, on a tiny model of its own."""

from __future__ import annotations

import runpy
from pathlib import Path

import torch
from reference import Reference, logprobs
from tiny import tiny_model

from inf import InferenceEngine

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo.py"
PROMPT, ANSWER = [5, 6, 7], [9, 10, 11, 12]


def test_three_steps_move_the_served_model_with_the_trained_one(tmp_path: Path) -> None:
    grpo = runpy.run_path(str(EXAMPLE))
    rollout = {"dtype": "float32", "prompt_length": 64, "response_length": grpo["ROOM"]}
    with InferenceEngine(model_path=str(tiny_model()), rollout=rollout) as engine:
        model = Reference.of(engine).model

        def served() -> list[float]:
            (row,) = engine.get_logprobs({"prompt_token_ids": PROMPT}, [ANSWER])
            return row

        before = served()
        curve = grpo["train"](engine, model, 3, 1e-2)
        after = served()
        version = engine.generate("Hi", max_tokens=1).metadata[0]["weight_version"]
    logits = Reference(model).logits(PROMPT, ANSWER)
    expected = torch.tensor(logprobs(logits, ANSWER, 1.0))
    assert (torch.tensor(after) - expected).abs().max() < 1e-3
    assert (torch.tensor(before) - expected).abs().max() > 1e-2
    assert version == 3 and len(curve) == 3 and all(0 <= reward <= 1 for reward in curve)
    grpo["draw"](curve, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
