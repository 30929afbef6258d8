"""Keeps rows from tokens that `allowed_token_ids` and `bad_words` rule out, and forces the end of a
thought (`thinking_token_budget`).

Tokens that are never allowed are biases of -inf in SGLang's own table, which it keeps in order
while rows come and go. Words of several tokens, and what is forced, depend on what was generated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch

from _inf.backends.verl.patch_table import Replace, Wrap
from _inf.parts.budget.budget import ThinkingBudget
from _inf.parts.budget.sglang import KEY as BUDGET
from _inf.parts.masks import completing, rule_out
from _inf.parts.masks.sglang import ALLOWED, BAD_WORDS
from _inf.types import ThoughtMarks

KEPT = "inf_thinking_budget"  # on SGLang's record of a request


def custom_rows(reqs: Sequence[Req]) -> list[tuple[int, Req, dict[str, Any]]]:
    """The rows of a batch with `custom_params`: each one's number, its request, and the params. In
    most steps there are none, and each step looks for them more than once."""
    return [
        (row, req, custom)
        for row, req in enumerate(reqs)
        if (custom := req.sampling_params.custom_params)
    ]


def bias_against(build: Callable[..., Any], batch: ScheduleBatch, vocab_size: int) -> Any:
    info = build(batch, vocab_size)
    for row, _, custom in custom_rows(batch.reqs):
        if ALLOWED in custom or BAD_WORDS in custom:
            if info.logit_bias is None:
                info.logit_bias = torch.zeros(len(batch.reqs), vocab_size, device=info.device)
            single = [word for word in custom.get(BAD_WORDS, ()) if len(word) == 1]
            rule_out(info.logit_bias[row], custom.get(ALLOWED), single, ())
    return info


def apply_by_history(apply: Callable[..., None], info: Any, logits: torch.Tensor) -> None:
    apply(info, logits)
    rows = rows_by_history(info.penalizer_orchestrator.reqs())
    found = [
        (row, token)
        for row, req, custom in rows
        for token in completing(_long_words(custom), req.output_ids)
    ]
    if found:
        places = torch.tensor(found).to(logits.device, non_blocking=True)
        logits[places.unbind(1)] = -math.inf
    for row, req, custom in rows:
        if (token := _forced(req, custom)) is not None:
            logits[row] = -math.inf
            logits[row, token] = 0.0


def _forced(req: Req, custom: dict[str, Any]) -> int | None:
    if BUDGET not in custom:
        return None
    if (budget := getattr(req, KEPT, None)) is None:
        most, marks = custom[BUDGET]
        budget = ThinkingBudget(req.origin_input_ids, most, ThoughtMarks(**marks))
        setattr(req, KEPT, budget)
    return budget.token(req.output_ids)


def rows_by_history(reqs: Sequence[Req]) -> list[tuple[int, Req, dict[str, Any]]]:
    """Those of `custom_rows` for which what may come next depends on what was generated."""
    return [
        (row, req, custom)
        for row, req, custom in custom_rows(reqs)
        if BUDGET in custom or _long_words(custom)
    ]


def _long_words(custom: dict[str, Any]) -> list[list[int]]:
    return [word for word in custom.get(BAD_WORDS, ()) if len(word) > 1]


def patches() -> list[Replace]:
    batch = "sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo"
    # fmt: off
    return [
        Wrap(f"{batch}.from_schedule_batch", bias_against, "it has no list of allowed tokens"),
        Wrap(f"{batch}.apply_logits_bias", apply_by_history,
             "it has no list of bad words and no budget of a thought"),
    ]
    # fmt: on
