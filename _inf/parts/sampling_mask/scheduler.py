"""Returns the tokens that the filters left, in SGLang's field for the likeliest ones."""

from __future__ import annotations

from collections.abc import Callable

import torch

from _inf.backends.verl.child.drawing import KEPT, list_tokens
from _inf.backends.verl.patch_table import Process, Wrap


def return_kept(
    attach: Callable[..., None], self: object, output: object, logprobs: torch.Tensor, *args: object
) -> None:
    attach(self, output, logprobs, *args)
    rows, left = vars(args[2]).pop(KEPT, ((), None))
    if left is not None:
        left = left.cpu()
        counts = torch.bincount(left[:, 0], minlength=len(rows)).tolist()
        of_rows = map(torch.Tensor.tolist, left[:, 1].split(counts))
        list_tokens(output, logprobs, dict(zip(rows, of_rows, strict=True)))


def patches(process: Process) -> list[Wrap]:
    # fmt: off
    return [
        Wrap("sglang.srt.layers.sampler:Sampler._attach_logprobs_to_output", return_kept,
             "it does not say which tokens the filters leave"),
    ]
    # fmt: on
