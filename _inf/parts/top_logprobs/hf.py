"""Lists them after each token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from _inf.backends.hf import translation
from _inf.parts.top_logprobs import TopLogprobs, Tops
from _inf.types import ModelInfo, Request


class Translation(translation.Translation[TopLogprobs]):
    def __init__(self, part: TopLogprobs, request: Request, model: ModelInfo) -> None:
        super().__init__(part, request, model)
        self._tops: list[dict[int, float]] = []

    def chosen(self, token: int, logprob: float, logprobs: torch.Tensor) -> None:
        if named := self.part.logprob_token_ids:
            tokens, listed = list(named), logprobs[list(named)]
        else:
            listed, likeliest = logprobs.topk(self.part.logprobs)
            tokens = likeliest.tolist()
        pairs = [*zip(tokens, listed.tolist(), strict=True), (token, logprob)]
        self._tops.append({each: value for each, value in pairs if math.isfinite(value)})

    def record(self, ids: Sequence[int], *, whole: bool) -> Tops:
        return Tops(list(self._tops))
