"""`presence_penalty` and `frequency_penalty`, as in OpenAI's API; every engine has them."""

from __future__ import annotations

import dataclasses
from functools import partial

from _inf.parts.part import Part
from _inf.request import values
from _inf.request.keyword import Keyword

_check = partial(values.number, least=-2.0, most=2.0)


@dataclasses.dataclass(frozen=True)
class Penalties(Part):
    same_names = {"sglang", "openai"}
    keywords = {
        "presence_penalty": Keyword(
            _check,
            "Lowers the logits of generated tokens, once. In [-2, 2], default 0 (as OpenAI).",
            float,
            "0",
            neutral=0.0,
            sglang="presence_penalty",
        ),
        "frequency_penalty": Keyword(
            _check,
            "Lowers the logits of generated tokens, per occurrence. In [-2, 2], default 0 (as "
            "OpenAI).",
            float,
            "0",
            neutral=0.0,
            sglang="frequency_penalty",
        ),
    }
    adjusts = True
    order = -2
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
