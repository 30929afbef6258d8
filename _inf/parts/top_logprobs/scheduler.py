"""Returns the log probs of the ids that a row names, in SGLang's field for the likeliest ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from _inf.backends.verl.child.drawing import list_tokens
from _inf.backends.verl.patch_table import Process, Wrap
from _inf.backends.verl.sglang_format import custom_rows
from _inf.parts.top_logprobs.sglang import IDS


def return_named(
    attach: Callable[..., None], self: object, output: object, logprobs: torch.Tensor, *args: Any
) -> None:
    attach(self, output, logprobs, *args)
    rows = custom_rows(args[2].penalizer_orchestrator.reqs())
    list_tokens(output, logprobs, {row: custom[IDS] for row, _, custom in rows if IDS in custom})


def patches(process: Process) -> list[Wrap]:
    # fmt: off
    return [
        Wrap("sglang.srt.layers.sampler:Sampler._attach_logprobs_to_output", return_named,
             "with token_ids_logprob, its own parameter, a row without it that begins together "
             "with one that has it gets the log probs of the whole vocabulary "
             "(layers/utils/logprob.py)"),
    ]
    # fmt: on
