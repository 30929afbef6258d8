"""`logit_bias`, as in OpenAI's API."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from _inf.errors import ConfigError
from _inf.parts.part import Part
from _inf.request.keyword import Keyword
from _inf.request.values import number, token_id, typed

MAX_BIAS = 100.0  # OpenAI's bound


def biases(name: str, value: object, *, vocabulary: int) -> dict[int, float]:
    """Check biases; a token id is an int or its digits, because JSON keys are text."""
    found: dict[int, float] = {}
    for key, bias in typed(name, value, Mapping, "a mapping of token ids to numbers").items():
        digits = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) <= 10
        token = token_id(name, int(key) if digits else key, vocabulary)
        if token in found:
            raise ConfigError.of(name, f"the token {token} appears twice.")
        found[token] = number(f"{name}[{token}]", bias, least=-MAX_BIAS, most=MAX_BIAS)
    return found


@dataclasses.dataclass(frozen=True)
class LogitBias(Part):
    same_names = {"sglang", "openai"}
    keywords = {
        "logit_bias": Keyword(
            biases,
            'Added to logits, before all else: {"TOKEN ID": NUMBER}. In [-100, 100] (as OpenAI).',
            dict[str, float],
            "",
            "logit_bias",
            typed="Mapping[Any, float]",
            neutral={},
            of_tokens=True,
            sglang="logit_bias",
        )
    }
    adjusts = True
    order = -1
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
