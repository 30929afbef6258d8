"""Translates `SamplingParams` to SGLang's names (sglang 0.5.9, `srt/sampling/sampling_params.py`).

Five of the keys are special: `custom_params` carries the parameters that our own code in the
scheduler's process reads (`child/scheduler.py`); `logprob_start_len`, `top_logprobs_num` and
`return_routed_experts` are fields of SGLang's request, to which `engine.py` moves them. SGLang has
one number for generated and prompt tokens, so that `top_prompt_logprobs` is our own key.
"""

from __future__ import annotations

from typing import Any

from _inf.types import SamplingParams

REPETITION_PENALTY, SEED, SAMPLING_MASK = "repetition_penalty", "seed", "sampling_mask"  # of ours
ROUTED_EXPERTS = "return_routed_experts"
LOGPROB_START, TOP_LOGPROBS = "logprob_start_len", "top_logprobs_num"
TOP_PROMPT_LOGPROBS = "top_prompt_logprobs"


def sglang_params(params: SamplingParams) -> dict[str, Any]:
    """Return one row's parameters, without those at a neutral value that would cost SGLang time."""
    request: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "max_new_tokens": params.max_tokens,
        "min_new_tokens": params.min_tokens,
        "ignore_eos": params.ignore_eos,
        "stop_token_ids": list(params.stop_token_ids),
        "stop": list(params.stop),
    }
    custom: dict[str, Any] = {}
    if params.repetition_penalty != 1.0:
        custom[REPETITION_PENALTY] = params.repetition_penalty
    if params.seed is not None:
        custom[SEED] = params.seed
    if params.sampling_mask:
        custom[SAMPLING_MASK] = True
    optional = {
        "custom_params": custom or None,
        "logit_bias": dict(params.logit_bias) or None,
        "json_schema": params.json_schema,
        "regex": params.regex,
        LOGPROB_START: 0 if params.prompt_logprobs else None,
        ROUTED_EXPERTS: params.return_routed_experts or None,
        TOP_PROMPT_LOGPROBS: params.top_prompt_logprobs or None,
        TOP_LOGPROBS: params.logprobs or (1 if params.sampling_mask else None),
    }
    return request | {name: value for name, value in optional.items() if value is not None}
