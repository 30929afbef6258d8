"""As Transformers' `RepetitionPenaltyLogitsProcessor`, after all else."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from _inf.backends.hf import translation
from _inf.parts.repetition_penalty import RepetitionPenalty


class Translation(translation.Translation[RepetitionPenalty]):
    def adjust(self, scores: torch.Tensor, ids: Sequence[int]) -> None:
        seen = sorted({*self.request.token_ids, *ids})
        before, factor = scores[seen], self.part.repetition_penalty
        scores[seen] = torch.where(before < 0, before * factor, before / factor)
