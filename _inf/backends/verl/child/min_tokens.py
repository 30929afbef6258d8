"""Applies `min_new_tokens`, also to rows that start again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from _inf.backends.verl.patch_table import Process, Replace, Wrap

if TYPE_CHECKING:
    from sglang.srt.sampling.penaltylib import BatchedMinNewTokensPenalizer as Penalizer


def apply_to_whole_rows(penalizer: Penalizer, logits: torch.Tensor) -> None:
    """-inf for the tokens that end an answer, in the rows that are too short."""
    long_enough = penalizer.len_output_tokens >= penalizer.min_new_tokens
    logits.add_(penalizer.stop_token_penalties.masked_fill(long_enough, 0.0))


def count_known(prepare: Callable[[Penalizer], None], penalizer: Penalizer) -> None:
    prepare(penalizer)
    known = [[len(req.output_ids)] for req in penalizer.orchestrator.reqs()]
    penalizer.len_output_tokens += torch.tensor(known).to(penalizer.len_output_tokens)


def patches(process: Process) -> list[Replace]:
    penalizer = "sglang.srt.sampling.penaltylib:BatchedMinNewTokensPenalizer"
    # fmt: off
    return [
        Replace(f"{penalizer}._apply", apply_to_whole_rows,
                "it selects whole rows of the vocabulary by a mask, which takes a fifth of a step "
                "of 64 rows on a CPU, and makes a GPU wait"),
        Wrap(f"{penalizer}._prepare", count_known,
             "a row that was taken out of a full cache and starts again with its generated tokens "
             "counts as one that has generated nothing"),
    ]
    # fmt: on
