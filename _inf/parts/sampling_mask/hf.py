"""Keeps what the filters leave."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from _inf.backends.hf import translation
from _inf.parts.sampling_mask import Kept, SamplingMask
from _inf.types import ModelInfo, Request


class Translation(translation.Translation[SamplingMask]):
    def __init__(self, part: SamplingMask, request: Request, model: ModelInfo) -> None:
        super().__init__(part, request, model)
        self._kept: list[dict[int, float]] = []

    def drawing(self, probs: torch.Tensor) -> None:
        left = probs.nonzero()[:, 0]
        self._kept.append(dict(zip(left.tolist(), probs[left].log().tolist(), strict=True)))

    def record(self, ids: Sequence[int], *, whole: bool) -> Kept:
        return Kept(list(self._kept))
