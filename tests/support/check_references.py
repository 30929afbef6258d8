"""What `inf.check` is compared with in tests: engines on Transformers, and trainers' batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import inf
from inf import InferenceEngine

FEW = {"batch": 8, "max_tokens": 12}


def trainers_batch(
    engine: InferenceEngine,
    reference: InferenceEngine,
    prompts: Sequence[Any] = ("What is 2 + 2?", "Paris"),
    *,
    trainers_temperature: float = 1.0,
    **params: Any,
) -> Any:
    """A batch of the engine, with the reference's `old_log_probs` at a temperature."""
    params = {"n": 8, "seed": 1, "temperature": 1.0, "max_tokens": 12, **params}
    batch = engine.rollout_batch(list(prompts), **params)
    columns = batch.batch
    theirs = torch.zeros_like(columns["rollout_log_probs"])
    for place, row in enumerate(inf.as_rollouts(batch)):
        ids = row.response_ids or []
        [logits] = reference.get_logits({"prompt_token_ids": row.prompt_token_ids}, [ids])
        table = torch.log_softmax(logits / trainers_temperature, -1)
        theirs[place, : len(ids)] = table[range(len(ids)), ids]
    columns["old_log_probs"] = theirs
    return batch
