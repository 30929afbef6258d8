"""Translates requests to SGLang's names, and its answers to `RequestOutput`s (sglang 0.5.9).

A row's parameters are a dict of SGLang's sampling parameters with some keys beside them:
`custom_params` are for our own code in the scheduler's process (`child/drawing.py`,
`child/penalties.py`); the others are fields of SGLang's request, which has one number for the
likeliest generated and prompt tokens, so that `top_prompt_logprobs` is our own key, and names an
adapter `lora_path`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from _inf.backends.base import check_finite
from _inf.errors import RequestFailure
from _inf.request.keywords import NEUTRAL
from _inf.types import Request, RequestOutput, SamplingParams, joined_versions

# Of our own code in the scheduler's process, in `custom_params`:
REPETITION_PENALTY, SEED, SAMPLING_MASK = "repetition_penalty", "seed", "sampling_mask"
ALLOWED, BAD_WORDS, LOGPROB_IDS = "allowed_token_ids", "bad_word_ids", "logprob_token_ids"
BUDGET, DETECTION = "thinking_token_budget", "repetition_detection"
SO_FAR = "so_far"  # how many of the last input ids are the answer's first part
CUSTOM = (REPETITION_PENALTY, SEED, SAMPLING_MASK, ALLOWED, BAD_WORDS, LOGPROB_IDS, DETECTION)
LISTED = {SAMPLING_MASK, LOGPROB_IDS}  # a row with one of them has other tokens than the likeliest
SAME = "temperature top_p top_k min_p presence_penalty frequency_penalty ignore_eos".split()
ROUTED_EXPERTS = "return_routed_experts"
# Below it are the log probs of tokens that are ruled out: -inf, or on a GPU the smallest number of
# their type, -3.39e38 or less (`layers/sampler.py`, `_attach_logprobs_to_output`).
RULED_OUT = -3.3e38
LOGPROB_START, TOP_LOGPROBS = "logprob_start_len", "top_logprobs_num"
TOP_PROMPT_LOGPROBS, ADAPTER = "top_prompt_logprobs", "lora_path"
NO_TOKENS = RequestOutput()
ENDED = {"type": "ended"}  # the finish reason of a row that `pause("abort")` ended
# Left out at their neutral values, with which some would cost SGLang time; as those of `CUSTOM`.
OPTIONAL = ("logit_bias", "json_schema", "regex", ROUTED_EXPERTS, TOP_PROMPT_LOGPROBS)
ASKED_FOR = {TOP_LOGPROBS, TOP_PROMPT_LOGPROBS, ROUTED_EXPERTS}  # what an answer then has


def sglang_params(request: Request) -> dict[str, Any]:
    """Return one row's parameters. The limits are those of the new tokens
    (`child/continued_rows.py`)."""
    params, known = request.params, len(request.known_ids) - len(request.token_ids)
    row = {name: getattr(params, name) for name in SAME} | {
        "max_new_tokens": params.max_tokens - known,
        "min_new_tokens": max(0, params.min_tokens - known),
        "stop_token_ids": list(params.stop_token_ids),
        "stop": list(params.stop),
    }
    row |= _not_neutral(params, OPTIONAL)
    custom = _not_neutral(params, CUSTOM)
    if known:
        custom[SO_FAR] = known
    if params.thinking_token_budget is not None and params.thought_marks is not None:
        # The arguments of a `ThinkingBudget` after the prompt.
        custom[BUDGET] = [params.thinking_token_budget, dataclasses.asdict(params.thought_marks)]
    if custom:
        row["custom_params"] = custom
    if params.adapter is not None:
        row[ADAPTER] = params.adapter
    if params.prompt_logprobs:
        row[LOGPROB_START] = 0
    if likeliest := 1 if LISTED & custom.keys() else params.logprobs:
        row[TOP_LOGPROBS] = likeliest
    return row


def _not_neutral(params: SamplingParams, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(params, name) for name in names}
    return {name: value for name, value in values.items() if value != NEUTRAL[name]}


def score_params(start: int, likeliest: int, adapter: str | None) -> dict[str, Any]:
    """Parameters of a prefill that returns the log probs of the prompt's tokens from `start` on."""
    params = {"max_new_tokens": 0, "temperature": 1.0, LOGPROB_START: start - 1}
    of_adapter = {} if adapter is None else {ADAPTER: adapter}
    return params | {TOP_PROMPT_LOGPROBS: likeliest} | of_adapter


def request_arguments(ids: list[int], params: dict[str, Any], rid: str) -> dict[str, Any]:
    params = dict(params)
    start, likeliest = params.pop(LOGPROB_START, -1), params.pop(TOP_LOGPROBS, 0)
    likeliest = max(likeliest, params.pop(TOP_PROMPT_LOGPROBS, 0))
    return {
        "input_ids": ids,
        "sampling_params": params,
        "return_logprob": True,
        "logprob_start_len": start,
        "top_logprobs_num": likeliest,
        ADAPTER: params.pop(ADAPTER, None),
        "return_routed_experts": params.pop(ROUTED_EXPERTS, False),
        "rid": rid,
    }


def output_row(
    output: dict[str, Any],
    params: dict[str, Any],
    row: int | None = 0,
    before: RequestOutput = NO_TOKENS,
) -> RequestOutput:
    """SGLang's answer to a row with these parameters; row: its number, for an error. before: the
    same answer when it had fewer tokens, whose log probs are not converted again."""
    meta, ids = output["meta_info"], list(output["output_ids"])
    finish = meta["finish_reason"] or {"type": None}
    known, custom = len(before.logprobs), params.get("custom_params", {})
    new = [logprob for logprob, _, _ in meta.get("output_token_logprobs", [])[known:]]
    # Before its end: of a row without a token left, the grammar refuses whatever was drawn.
    check_finite(new, row, known, masked=bool({ALLOWED, BAD_WORDS} & custom.keys()))
    if finish == ENDED:
        finish = {"type": "abort"}
    elif finish["type"] == "abort":
        reason = finish.get("message", "aborted")
        raise RequestFailure(f"The engine aborted the request: {reason}", row=row)
    if finish["type"] == "length" and ids and ids[-1] in (params.get("stop_token_ids") or ()):
        # SGLang checks the length first, even if the last allowed token is a stop token.
        finish = {"type": "stop", "matched": ids[-1]}
    prompt_logprobs = before.prompt_logprobs
    if not prompt_logprobs:
        prompt_logprobs = [logprob for logprob, _, _ in meta.get("input_token_logprobs", ())]
        check_finite(prompt_logprobs, row)
    return RequestOutput(
        token_ids=ids,
        logprobs=before.logprobs + new,
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish["type"],
        matched_stop=finish.get("matched"),
        prompt_tokens=meta["prompt_tokens"],
        completion_tokens=len(ids),
        cached_tokens=meta["cached_tokens"],
        weight_versions=meta["weight_versions"],
        **(_asked_for(meta, params, before) if params.keys() & ASKED_FOR else {}),
    )


def _asked_for(
    meta: dict[str, Any], params: dict[str, Any], before: RequestOutput
) -> dict[str, Any]:
    """The parts of an output that only a row with their keywords has."""
    parts: dict[str, Any] = {}
    if likeliest := params.get(TOP_LOGPROBS):
        custom = params.get("custom_params", {})
        name = "kept" if SAMPLING_MASK in custom else "top_logprobs"
        most = None if LISTED & custom.keys() else likeliest
        new = _top_logprobs(meta, len(before.logprobs), most)
        parts[name] = (getattr(before, name) or []) + new
    if likeliest := params.get(TOP_PROMPT_LOGPROBS):
        parts["top_prompt_logprobs"] = [
            None if top is None else {token: value for value, token, _ in top[:likeliest]}
            for top in meta.get("input_top_logprobs", ())
        ]
    if ROUTED_EXPERTS in params and (experts := meta.get("routed_experts")) is not None:
        parts["routed_experts"] = experts.numpy()
    return parts


def whole_row(request: Request, new: RequestOutput) -> RequestOutput:
    """The whole answer to a request, of which `new` was computed."""
    row = _with_so_far(request, new)
    if row.finish_reason is None or request.params.thinking_token_budget is None:
        return row
    from _inf.request.thinking_budget import budget_of

    budget = budget_of(request)
    return dataclasses.replace(row, forced_at=budget.forced(row.token_ids) if budget else ())


def _with_so_far(request: Request, new: RequestOutput) -> RequestOutput:
    """The whole answer to a request whose first part was known; `new` has the rest. A failed row
    has no part."""
    if (known := request.so_far) is None or new.error is not None:
        return new
    count, versions = len(known.token_ids), new.weight_versions if new.token_ids else []
    return dataclasses.replace(
        new,
        token_ids=known.token_ids + new.token_ids,
        logprobs=known.logprobs + new.logprobs,
        completion_tokens=count + new.completion_tokens,
        weight_versions=joined_versions(known.weight_versions, versions, count),
    )


def _top_logprobs(meta: dict[str, Any], start: int, most: int | None) -> list[dict[int, float]]:
    """The likeliest tokens, at most so many, without those that a grammar or a bias ruled out; of
    the answer's tokens from `start` on."""
    tops, sampled = meta["output_top_logprobs"][start:], meta["output_token_logprobs"][start:]
    return [
        {token: value for value, token, _ in [*top[:most], drawn] if value > RULED_OUT}
        for top, drawn in zip(tops, sampled, strict=True)
    ]
