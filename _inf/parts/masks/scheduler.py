"""Rules tokens out in SGLang's scheduler.

Tokens that are never allowed are biases of -inf in SGLang's own table, which it keeps in order
while rows come and go. Words of several tokens depend on what was generated.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from _inf.backends.verl.patch_table import Process, Wrap
from _inf.backends.verl.sglang_format import custom_rows
from _inf.parts.masks import completing, rule_out
from _inf.parts.masks.sglang import ALLOWED, LONG_WORDS, SHORT_WORDS


def bias_against(
    build: Callable[..., SamplingBatchInfo], batch: ScheduleBatch, vocab_size: int
) -> SamplingBatchInfo:
    info = build(batch, vocab_size)
    for row, _, custom in custom_rows(batch.reqs):
        if ALLOWED in custom or SHORT_WORDS in custom:
            if info.logit_bias is None:
                info.logit_bias = torch.zeros(len(batch.reqs), vocab_size, device=info.device)
            words = custom.get(SHORT_WORDS, ())
            rule_out(info.logit_bias[row], custom.get(ALLOWED), words, ())
    return info


def complete_no_word(
    apply: Callable[..., None], info: SamplingBatchInfo, logits: torch.Tensor
) -> None:
    apply(info, logits)
    found = [
        (row, token)
        for row, req, custom in custom_rows(info.penalizer_orchestrator.reqs())
        for token in completing(custom.get(LONG_WORDS, ()), req.output_ids)
    ]
    if found:
        places = torch.tensor(found).to(logits.device, non_blocking=True)
        logits[places.unbind(1)] = -math.inf


def patches(process: Process) -> list[Wrap]:
    batch = "sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo"
    # fmt: off
    return [
        Wrap(f"{batch}.from_schedule_batch", bias_against, "it has no list of allowed tokens"),
        Wrap(f"{batch}.apply_logits_bias", complete_no_word, "it has no list of bad words"),
    ]
    # fmt: on
