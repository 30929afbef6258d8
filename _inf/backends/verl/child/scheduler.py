"""Corrects what SGLang's scheduler gets wrong or leaves out in token-in-token-out mode.

`patches.py` says which file of sglang 0.5.9 each function corrects, and why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
)

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch


def with_tokenizer(method: Callable[..., None], self: Any, *args: Any) -> None:
    """Load the tokenizer although requests and answers are token ids; `method` is a method of the
    scheduler, or takes the scheduler as its argument."""
    server_args = (args[0] if args else self).server_args
    server_args.skip_tokenizer_init = False
    try:
        method(self, *args)
    finally:
        server_args.skip_tokenizer_init = True


def with_cached_eos(init: Callable[[Any], None], scheduler: Any) -> None:
    """Keep the EOS id on the tokenizer itself: otherwise Transformers (4.57.1) finds the token's
    name and then its id anew each time it is asked for."""
    init(scheduler)
    vars(scheduler.tokenizer)["eos_token_id"] = scheduler.tokenizer.eos_token_id


def unpinned_without_a_gpu(
    build: Callable[..., None],
    self: Any,
    num_tokens: int,
    num_hidden_layers: int,
    num_experts_per_tok: int,
) -> None:
    """Allocate the buffer of each token's experts in ordinary memory."""
    if torch.cuda.is_available():
        build(self, num_tokens, num_hidden_layers, num_experts_per_tok)
        return
    self.num_tokens = num_tokens
    self.buffer = torch.zeros(
        (num_tokens, num_hidden_layers, num_experts_per_tok), dtype=torch.int32
    )


def temperature_of_top_k_1(build: Callable[..., Any], batch: ScheduleBatch, vocab_size: int) -> Any:
    info = build(batch, vocab_size)
    # SGLang gives a greedy row temperature 1.
    info.is_all_greedy &= all(req.sampling_params.temperature == 1.0 for req in batch.reqs)
    return info


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
