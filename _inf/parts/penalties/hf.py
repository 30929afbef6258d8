"""As SGLang applies them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from _inf.backends.hf import translation
from _inf.parts.penalties import Penalties


class Translation(translation.Translation[Penalties]):
    def adjust(self, scores: torch.Tensor, ids: Sequence[int]) -> None:
        if counts := Counter(ids):
            repeats = torch.tensor(list(counts.values()), device=scores.device)
            penalty = repeats * self.part.frequency_penalty + self.part.presence_penalty
            scores[list(counts)] -= penalty.to(scores.dtype)
