"""Applies it in SGLang's scheduler, as Transformers does."""

from __future__ import annotations

from collections.abc import Callable

import torch
from sglang.srt.sampling.penaltylib import BatchedPresencePenalizer
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from _inf.backends.verl.patch_table import Process, Wrap
from _inf.backends.verl.sglang_format import custom_of
from _inf.parts.repetition_penalty.sglang import KEY


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
        reqs, device = self.orchestrator.reqs(), self.orchestrator.device
        known = [[*req.origin_input_ids_unpadded, *req.output_ids] for req in reqs]
        rows = torch.tensor([row for row, ids in enumerate(known) for _ in ids])
        tokens = torch.tensor([token for ids in known for token in ids])
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


def add_penalizers(
    init: Callable[..., None],
    orchestrator: object,
    vocab_size: int,
    batch: object,
    penalizers: set[object],
) -> None:
    init(orchestrator, vocab_size, batch, {*penalizers, RepetitionPenalizer})


def penalize_last(
    apply: Callable[..., None], info: SamplingBatchInfo, logits: torch.Tensor
) -> None:
    apply(info, logits)
    penalizer = info.penalizer_orchestrator.penalizers[RepetitionPenalizer]
    if penalizer.is_prepared():
        penalizer.penalize(logits)


def _penalty(req: object) -> float:
    return float(custom_of(req).get(KEY, 1.0))


def patches(process: Process) -> list[Wrap]:
    # fmt: off
    return [
        Wrap("sglang.srt.sampling.penaltylib:BatchedPenalizerOrchestrator.__init__",
             add_penalizers,
             "repetition_penalty is validated, and nothing applies it"),
        Wrap("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.apply_logits_bias",
             penalize_last,
             "its penalties come before a logit_bias; Transformers' repetition_penalty after it"),
    ]
    # fmt: on
