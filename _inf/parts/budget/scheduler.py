"""Forces the end of a thought in SGLang's scheduler."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

from _inf.backends.verl.patch_table import Process, Wrap
from _inf.backends.verl.sglang_format import custom_rows
from _inf.parts.budget.budget import ThinkingBudget
from _inf.parts.budget.sglang import KEY
from _inf.types import ThoughtMarks

KEPT = "inf_thinking_budget"  # on SGLang's record of a request


def force_the_end(
    apply: Callable[..., None], info: SamplingBatchInfo, logits: torch.Tensor
) -> None:
    apply(info, logits)
    for row, req, custom in custom_rows(info.penalizer_orchestrator.reqs()):
        budget = _budget(req, *custom[KEY]) if KEY in custom else None
        if budget and (token := budget.token(req.output_ids)) is not None:
            logits[row] = -math.inf
            logits[row, token] = 0.0


def _budget(req: Any, most: int, marks: dict[str, Any]) -> ThinkingBudget:
    if KEPT not in vars(req):
        vars(req)[KEPT] = ThinkingBudget(req.origin_input_ids, most, ThoughtMarks(**marks))
    budget: ThinkingBudget = vars(req)[KEPT]
    return budget


def patches(process: Process) -> list[Wrap]:
    # fmt: off
    return [
        Wrap("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo.apply_logits_bias",
             force_the_end, "it has no budget of a thought"),
    ]
    # fmt: on
