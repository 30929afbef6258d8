"""Keeps rows from tokens that `allowed_token_ids` and `bad_words` rule out.

Tokens that are never allowed are biases of -inf in SGLang's own table, which it keeps in order
while rows come and go. Words of several tokens depend on what was generated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

from _inf.backends.masks import completing, rule_out
from _inf.backends.verl.patch_table import Replace, Wrap
from _inf.backends.verl.sglang_format import ALLOWED, BAD_WORDS


def bias_against(build: Callable[..., Any], batch: ScheduleBatch, vocab_size: int) -> Any:
    info = build(batch, vocab_size)
    for row, req in enumerate(batch.reqs):
        custom = req.sampling_params.custom_params or {}
        if ALLOWED in custom or BAD_WORDS in custom:
            if info.logit_bias is None:
                info.logit_bias = torch.zeros(len(batch.reqs), vocab_size, device=info.device)
            single = [word for word in custom.get(BAD_WORDS, ()) if len(word) == 1]
            rule_out(info.logit_bias[row], custom.get(ALLOWED), single, ())
    return info


def rule_out_words(apply: Callable[..., None], info: Any, logits: torch.Tensor) -> None:
    apply(info, logits)
    found = [
        (row, token)
        for row, req in enumerate(info.penalizer_orchestrator.reqs())
        for token in completing(long_words(req), req.output_ids)
    ]
    if found:
        rows, tokens = torch.tensor(found).to(logits.device, non_blocking=True).unbind(1)
        logits[rows, tokens] = -math.inf


def long_words(req: Req) -> list[list[int]]:
    """Those of several tokens, which depend on what was generated."""
    words = (req.sampling_params.custom_params or {}).get(BAD_WORDS, ())
    return [word for word in words if len(word) > 1]


def patches() -> list[Replace]:
    batch = "sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo"
    # fmt: off
    return [
        Wrap(f"{batch}.from_schedule_batch", bias_against, "it has no list of allowed tokens"),
        Wrap(f"{batch}.apply_logits_bias", rule_out_words, "it has no list of bad words"),
    ]
    # fmt: on
