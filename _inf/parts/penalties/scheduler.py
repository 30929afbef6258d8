"""Applies them to rows that start again with the tokens that they have generated."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedPresencePenalizer,
)

from _inf.backends.verl.patch_table import Process, Wrap

AGAIN = (
    "a row that was taken out of a full cache and starts again with its generated tokens gets the "
    "penalties of a row that has generated nothing"
)


def count_known(prepare: Callable[[object], None], penalizer: BatchedFrequencyPenalizer) -> None:
    prepare(penalizer)
    for row, generated in _known(penalizer):
        counts = torch.bincount(generated, minlength=penalizer.orchestrator.vocab_size)
        penalizer.cumulated_frequency_penalties[row] += (
            counts.to(penalizer.frequency_penalties.device) * penalizer.frequency_penalties[row]
        )


def note_known(prepare: Callable[[object], None], penalizer: BatchedPresencePenalizer) -> None:
    prepare(penalizer)
    for row, generated in _known(penalizer):
        penalizer.cumulated_presence_penalties[row, generated] = penalizer.presence_penalties[row]


def _known(
    penalizer: BatchedFrequencyPenalizer | BatchedPresencePenalizer,
) -> Iterator[tuple[int, torch.Tensor]]:
    for row, req in enumerate(penalizer.orchestrator.reqs()):
        if req.output_ids:
            yield row, torch.tensor(req.output_ids, dtype=torch.long)


def patches(process: Process) -> list[Wrap]:
    module = "sglang.srt.sampling.penaltylib"
    return [
        Wrap(f"{module}:BatchedFrequencyPenalizer._prepare", count_known, AGAIN),
        Wrap(f"{module}:BatchedPresencePenalizer._prepare", note_known, AGAIN),
    ]
