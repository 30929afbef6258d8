"""Applies `repetition_penalty` as Transformers does, and all penalties to rows that start again."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
)
from sglang.srt.sampling.penaltylib.orchestrator import _BatchedPenalizer

from _inf.backends.verl.patch_table import Replace, Wrap
from _inf.backends.verl.sglang_format import REPETITION_PENALTY


class RepetitionPenalizer(_BatchedPenalizer):
    """SGLang keeps its rows in order while requests come, go and return to the queue.

    `seen`: rows x tokens, each row's prompt and answer, filled up with tokens of its own;
    `penalties`: rows x 1. Both on the logits' device.
    """

    seen: torch.Tensor
    penalties: torch.Tensor

    def _is_required(self) -> bool:
        return any(_penalty(req) != 1.0 for req in self.orchestrator.reqs())

    def _prepare(self) -> None:
        reqs, device = self.orchestrator.reqs(), self.orchestrator.device
        penalties = [[_penalty(req)] for req in reqs]
        seen = [
            [0] if penalty == 1.0 else sorted({*req.origin_input_ids, *req.output_ids})
            for req, [penalty] in zip(reqs, penalties, strict=True)
        ]
        self.seen = torch.tensor(_filled(seen)).to(device, non_blocking=True)
        self.penalties = torch.tensor(penalties).to(device, non_blocking=True)

    def _cumulate_output_tokens(self, output_ids: torch.Tensor) -> None:
        self.seen = torch.cat([self.seen, output_ids[:, None]], dim=1)

    def _apply(self, logits: torch.Tensor) -> None:
        """Nothing: biases and grammars come before it (`penalize_last`)."""

    def penalize(self, logits: torch.Tensor) -> None:
        scores = logits.gather(1, self.seen)
        penalized = torch.where(scores < 0, scores * self.penalties, scores / self.penalties)
        logits.scatter_(1, self.seen, penalized.to(logits.dtype))

    def _filter(self, keep_indices: torch.Tensor) -> None:
        self.seen, self.penalties = self.seen[keep_indices], self.penalties[keep_indices]

    def _merge(self, their: RepetitionPenalizer) -> None:
        width = max(self.seen.shape[1], their.seen.shape[1])
        self.seen = torch.cat([_widened(self.seen, width), _widened(their.seen, width)])
        self.penalties = torch.cat([self.penalties, their.penalties])

    def _teardown(self) -> None:
        self.__dict__.pop("seen", None)
        self.__dict__.pop("penalties", None)


class MinTokensPenalizer(BatchedMinNewTokensPenalizer):
    """`min_new_tokens` by the columns of the tokens that end an answer. SGLang's own picks whole
    rows of the vocabulary by a mask, for a fifth of a step of 64 rows on a CPU.

    `stop_token_penalties`: rows x tokens, the ids of those tokens in place of a number for each of
    the vocabulary.
    """

    min_new_tokens: torch.Tensor
    len_output_tokens: torch.Tensor
    stop_token_penalties: torch.Tensor

    def _prepare(self) -> None:
        reqs, device = self.orchestrator.reqs(), self.orchestrator.device
        ends = [
            sorted(
                {req.tokenizer.eos_token_id}
                | (req.sampling_params.stop_token_ids or set())
                | (req.tokenizer.additional_stop_token_ids or set())
            )
            for req in reqs
        ]
        least = torch.tensor([[req.sampling_params.min_new_tokens] for req in reqs])
        self.stop_token_penalties = torch.tensor(_filled(ends)).to(device, non_blocking=True)
        self.min_new_tokens = least.to(device, non_blocking=True)
        self.len_output_tokens = torch.zeros_like(self.min_new_tokens)

    def _apply(self, logits: torch.Tensor) -> None:
        ends, short = self.stop_token_penalties, self.len_output_tokens < self.min_new_tokens
        logits.scatter_(1, ends, logits.gather(1, ends).masked_fill(short, -math.inf))

    def _merge(self, their: MinTokensPenalizer) -> None:
        width = max(penalizer.stop_token_penalties.shape[1] for penalizer in (self, their))
        for penalizer in (self, their):
            penalizer.stop_token_penalties = _widened(penalizer.stop_token_penalties, width)
        super()._merge(their)


def add_penalizers(
    init: Callable[..., None], orchestrator: Any, vocab_size: int, batch: Any, penalizers: set[Any]
) -> None:
    kept = penalizers - {BatchedMinNewTokensPenalizer}
    init(orchestrator, vocab_size, batch, {*kept, RepetitionPenalizer, MinTokensPenalizer})


def penalize_last(apply: Callable[..., None], info: Any, logits: torch.Tensor) -> None:
    apply(info, logits)
    penalizer = info.penalizer_orchestrator.penalizers[RepetitionPenalizer]
    if penalizer.is_prepared():
        penalizer.penalize(logits)


def _penalty(req: Any) -> float:
    return float((req.sampling_params.custom_params or {}).get(REPETITION_PENALTY, 1.0))


def _filled(rows: list[list[int]]) -> list[list[int]]:
    """As `_widened` does."""
    width = max(map(len, rows), default=1)
    return [ids + ids[:1] * (width - len(ids)) for ids in rows]


def _widened(ids: torch.Tensor, width: int) -> torch.Tensor:
    """Filled up with each row's first token, for which nothing changes if it is there twice."""
    return torch.cat([ids, ids[:, :1].expand(-1, width - ids.shape[1])], dim=1)


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
             "repetition_penalty is validated, and nothing applies it; min_new_tokens is slow"),
        Wrap(f"{batch}.apply_logits_bias", penalize_last,
             "its penalties come before a logit_bias; Transformers' repetition_penalty after it"),
        Wrap(f"{batch}.from_schedule_batch", penalties_of_retracted_rows,
             "sampling/penaltylib: a row that was taken out of a full cache and starts again with "
             "its generated tokens gets the penalties and min_new_tokens of a row that has "
             "generated nothing"),
    ]
    # fmt: on
