"""Applies `repetition_penalty` as Transformers does, and all penalties to rows that start again."""

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
from _inf.backends.verl.sglang_format import REPETITION_PENALTY


class RepetitionPenalizer(BatchedPresencePenalizer):
    """Keeps its penalties where SGLang's own penalizer keeps those of `presence_penalty`, in order
    while requests come, go and return to the queue.

    `cumulated_presence_penalties`: rows x vocabulary, a row's penalty for each of its tokens, 1 for
    all others; `presence_penalties`: rows x 1.
    """

    cumulated_presence_penalties: torch.Tensor
    presence_penalties: torch.Tensor

    def _is_required(self) -> bool:
        return any(_penalty(req) != 1.0 for req in self.orchestrator.reqs())

    def _prepare(self) -> None:
        """Answers are added by `penalties_of_retracted_rows`."""
        reqs, device = self.orchestrator.reqs(), self.orchestrator.device
        rows = torch.tensor([row for row, req in enumerate(reqs) for _ in req.origin_input_ids])
        tokens = torch.tensor([token for req in reqs for token in req.origin_input_ids])
        penalties = torch.tensor([[_penalty(req)] for req in reqs])
        [rows, tokens, self.presence_penalties] = (
            each.to(device, non_blocking=True) for each in (rows, tokens, penalties)
        )
        factors = torch.ones(len(reqs), self.orchestrator.vocab_size, device=device)
        factors[rows, tokens] = self.presence_penalties[rows, 0]
        self.cumulated_presence_penalties = factors

    def _apply(self, logits: torch.Tensor) -> None:
        """Nothing: biases and grammars come before it (`penalize_last`)."""

    def penalize(self, logits: torch.Tensor) -> None:
        factors = self.cumulated_presence_penalties
        logits.copy_(torch.where(logits < 0, logits * factors, logits / factors))


def apply_to_whole_rows(penalizer: Any, logits: torch.Tensor) -> None:
    """`min_new_tokens`: -inf for the tokens that end an answer, in the rows that are too short."""
    long_enough = penalizer.len_output_tokens >= penalizer.min_new_tokens
    logits.add_(penalizer.stop_token_penalties.masked_fill(long_enough, 0.0))


def add_penalizers(
    init: Callable[..., None], orchestrator: Any, vocab_size: int, batch: Any, penalizers: set[Any]
) -> None:
    init(orchestrator, vocab_size, batch, {*penalizers, RepetitionPenalizer})


def penalize_last(apply: Callable[..., None], info: Any, logits: torch.Tensor) -> None:
    apply(info, logits)
    penalizer = info.penalizer_orchestrator.penalizers[RepetitionPenalizer]
    if penalizer.is_prepared():
        penalizer.penalize(logits)


def _penalty(req: Any) -> float:
    return float((req.sampling_params.custom_params or {}).get(REPETITION_PENALTY, 1.0))


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
        Wrap("sglang.srt.sampling.penaltylib:BatchedPenalizerOrchestrator.__init__",
             add_penalizers,
             "repetition_penalty is validated, and nothing applies it"),
        Replace("sglang.srt.sampling.penaltylib:BatchedMinNewTokensPenalizer._apply",
                apply_to_whole_rows,
                "it picks whole rows of the vocabulary by a mask, for a fifth of a step of 64 rows "
                "on a CPU; a GPU waits for that"),
        Wrap(f"{batch}.apply_logits_bias", penalize_last,
             "its penalties come before a logit_bias; Transformers' repetition_penalty after it"),
        Wrap(f"{batch}.from_schedule_batch", penalties_of_retracted_rows,
             "sampling/penaltylib: a row that was taken out of a full cache and starts again with "
             "its generated tokens gets the penalties and min_new_tokens of a row that has "
             "generated nothing"),
    ]
    # fmt: on
