"""Adds the biases."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from _inf.backends.hf import translation
from _inf.parts.logit_bias import LogitBias


class Translation(translation.Translation[LogitBias]):
    def adjust(self, scores: torch.Tensor, ids: Sequence[int]) -> None:
        biases = self.part.logit_bias
        scores[list(biases)] += torch.tensor([*biases.values()], device=scores.device)
