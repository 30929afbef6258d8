"""`repetition_penalty`, as Transformers applies it."""

from __future__ import annotations

import dataclasses
from functools import partial

from _inf.parts.part import Part
from _inf.request import values
from _inf.request.keyword import Keyword


@dataclasses.dataclass(frozen=True)
class RepetitionPenalty(Part):
    same_names = {"openai"}
    keywords = {
        "repetition_penalty": Keyword(
            partial(values.number, least=1e-6),
            "Above 1, makes tokens of the prompt and the answer less likely. Above 0; default 1: "
            "none (as Transformers).",
            float,
            "1",
            "repetition_penalty",
            neutral=1.0,
            sglang="repetition_penalty",
        )
    }
    adjusts = True
    order = 2
    repetition_penalty: float = 1.0
