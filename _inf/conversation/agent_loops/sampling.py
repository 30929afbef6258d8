"""The sampling parameters that agent loops receive and send, as verl's dict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from _inf.config.other_names import hint
from _inf.errors import ConfigError, shown
from _inf.parts.part import values_of
from _inf.request.keywords import KEYWORDS
from _inf.request.sampling import PART_OF, parts_of
from _inf.types import ModelInfo, SamplingParams

# What verl 0.6.1 gives to `run` (`agent_loop.py`, `generate_sequences`), and `top_k`, as 0.9 does.
GIVEN = ("temperature", "top_p", "top_k", "repetition_penalty")
ENGINES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}  # SGLang's names
# SGLang's and vLLM's that change only texts; verl's answer is all sampled ids.
OF_TEXTS = (
    *("skip_special_tokens", "spaces_between_special_tokens"),
    *("no_stop_trim", "include_stop_str_in_output"),
)
FIELDS = {field.name for field in dataclasses.fields(SamplingParams)}
# Those of one request; the others ask for more than verl's answer can hold.
TAKEN = [
    name
    for name, row in KEYWORDS.items()
    if (name in FIELDS or name in PART_OF) and "loop request" not in row.refused
]


def loop_params(params: SamplingParams) -> dict[str, object]:
    """Return the `sampling_params` of `AgentLoopBase.run`."""
    own = vars(params) | values_of(params.parts)
    return {name: own.get(name, KEYWORDS[name].neutral) for name in GIVEN} | {"logprobs": True}


def request_params(
    given: Mapping[str, object], row: SamplingParams, model: ModelInfo
) -> SamplingParams:
    """Return the parameters of a request: the row's, and in their place what the loop gives.

    `logprobs` is accepted: answers always have them; so is what would not change an answer, an `n`
    of 1 and `OF_TEXTS`. Raises `ConfigError`.
    """
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key in OF_TEXTS or (key == "n" and value == 1):
            continue
        name = ENGINES.get(key, key)
        if name not in TAKEN and key != "logprobs":
            instead = hint(name, TAKEN) or f"; there are {', '.join(TAKEN)}."
            raise ConfigError.of(
                f"sampling_params.{key}", f"a request of an agent loop cannot have it{instead}"
            )
        if key != "logprobs" and value is not None:
            values[name] = KEYWORDS[name].checked(name, value, model.limits.vocabulary)
    if isinstance(logprobs := given.get("logprobs"), int) and logprobs > 1:
        raise ConfigError.of(
            "sampling_params.logprobs",
            f"{shown(logprobs)}: an answer has only its own ids' log probs.",
        )
    if "stop_token_ids" in values or "ignore_eos" in values:
        own = values.get("stop_token_ids", set(row.stop_token_ids) - model.eos_token_ids)
        ends = () if values.get("ignore_eos", row.ignore_eos) else model.eos_token_ids
        values["stop_token_ids"] = sorted({*own, *ends})
    own = {name: value for name, value in values.items() if name in FIELDS}
    of_parts = {name: value for name, value in values.items() if name not in FIELDS}
    parts = parts_of(values_of(row.parts) | of_parts, model) if of_parts else row.parts
    return dataclasses.replace(row, **own, parts=parts)
