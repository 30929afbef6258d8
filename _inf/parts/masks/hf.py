"""Rules the tokens out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from _inf.backends.hf import translation
from _inf.parts.masks import Masks, rule_out


class Translation(translation.Translation[Masks]):
    def adjust(self, scores: torch.Tensor, ids: Sequence[int]) -> None:
        rule_out(scores, self.part.allowed_token_ids, self.part.word_ids, ids)
