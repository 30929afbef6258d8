"""Applies penalties to rows that start again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
)

from _inf.backends.verl.patch_table import Replace, Wrap


def apply_to_whole_rows(penalizer: Any, logits: torch.Tensor) -> None:
    """`min_new_tokens`: -inf for the tokens that end an answer, in the rows that are too short."""
    long_enough = penalizer.len_output_tokens >= penalizer.min_new_tokens
    logits.add_(penalizer.stop_token_penalties.masked_fill(long_enough, 0.0))


def penalties_of_retracted_rows(
    build: Callable[..., Any], batch: ScheduleBatch, vocab_size: int
) -> Any:
    info = build(batch, vocab_size)
    for penalizer in info.penalizer_orchestrator.penalizers.values():
        if penalizer.is_prepared():
            for row, req in enumerate(batch.reqs):
                if req.output_ids:
                    _remember(penalizer, row, torch.tensor(req.output_ids, dtype=torch.long))
    return info


def _remember(penalizer: Any, row: int, generated: torch.Tensor) -> None:
    if isinstance(penalizer, BatchedFrequencyPenalizer):
        counts = torch.bincount(generated, minlength=penalizer.orchestrator.vocab_size)
        penalizer.cumulated_frequency_penalties[row] += (
            counts.to(penalizer.frequency_penalties.device) * penalizer.frequency_penalties[row]
        )
    elif isinstance(penalizer, BatchedPresencePenalizer):
        penalizer.cumulated_presence_penalties[row, generated] = penalizer.presence_penalties[row]
    elif isinstance(penalizer, BatchedMinNewTokensPenalizer):
        penalizer.len_output_tokens[row] += len(generated)


def patches() -> list[Replace]:
    batch = "sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo"
    # fmt: off
    return [
        Replace("sglang.srt.sampling.penaltylib:BatchedMinNewTokensPenalizer._apply",
                apply_to_whole_rows,
                "it picks whole rows of the vocabulary by a mask, for a fifth of a step of 64 rows "
                "on a CPU; a GPU waits for that"),
        Wrap(f"{batch}.from_schedule_batch", penalties_of_retracted_rows,
             "sampling/penaltylib: a row that was taken out of a full cache and starts again with "
             "its generated tokens gets the penalties and min_new_tokens of a row that has "
             "generated nothing"),
    ]
    # fmt: on
