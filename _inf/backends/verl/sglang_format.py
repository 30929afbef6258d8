"""Translates requests to SGLang's names, and its answers to `RequestOutput`s (sglang 0.5.9).

A row's parameters are a dict of SGLang's sampling parameters and some further keys: `custom_params`
are for our own code in the scheduler's process; the others are fields of SGLang's request.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from _inf.backends.rows import check_finite
from _inf.backends.verl.translation import Translation
from _inf.errors import RequestFailure
from _inf.parts.part import Part
from _inf.types import Request, RequestOutput

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

# Of our own code in the scheduler's process, in `custom_params`:
SEED = "seed"
BY_HISTORY = "by_history"  # whether what may come next depends on what was generated
KEEP_FILTERED = "keep_filtered"  # whether what the filters leave is kept (`child/drawing.py`)
KNOWN_TOKENS = "known_tokens"  # how many of the last input ids are of the answer
LOGPROB_START, TOP_LOGPROBS = "logprob_start_len", "top_logprobs_num"
NO_TOKENS = RequestOutput()
ENDED = {"type": "ended"}  # the finish reason of a row that `pause("abort")` ended


class Answer(TypedDict):
    """SGLang's answer to a row."""

    output_ids: list[int]
    meta_info: dict[str, Any]


def custom_rows(reqs: Sequence[Req]) -> list[tuple[int, Req, dict[str, Any]]]:
    """The rows of a batch with `custom_params`: each one's number, SGLang's record of its request,
    and the params. In most steps there are none, and each step looks for them more than once."""
    return [
        (row, req, custom)
        for row, req in enumerate(reqs)
        if (custom := req.sampling_params.custom_params)
    ]


def custom_of(req: Req) -> dict[str, Any]:
    """The `custom_params` of a request."""
    return req.sampling_params.custom_params or {}


def sglang_params(request: Request) -> dict[str, Any]:
    """Return one row's parameters."""
    params = request.params
    row: dict[str, Any] = {
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "min_p": params.min_p,
        "ignore_eos": params.ignore_eos,
        "max_new_tokens": params.max_tokens,
        "min_new_tokens": params.min_tokens,
        "stop_token_ids": list(params.stop_token_ids),
        "stop": list(params.stop),
    }
    custom = {} if params.seed is None else {SEED: params.seed}
    for part in params.parts:
        sent = translation(part).sent(params)
        custom |= sent.pop("custom_params", {})
        if TOP_LOGPROBS in sent:  # one number for prompt and answer
            sent[TOP_LOGPROBS] = max(sent[TOP_LOGPROBS], row.get(TOP_LOGPROBS, 0))
        row |= sent
    return row | {"custom_params": custom} if custom else row


def translation(part: Part) -> Translation[Any]:
    kind: type[Translation[Any]] = part.on("sglang", Translation)
    return kind(part)


@functools.cache
def _of_requests() -> frozenset[str]:
    """What SGLang takes in addition to the sampling parameters."""
    from sglang.srt.entrypoints.engine import Engine

    return frozenset(inspect.signature(Engine.async_generate).parameters)


def request_arguments(ids: list[int], params: dict[str, Any], rid: str) -> dict[str, object]:
    beside = {name: value for name, value in params.items() if name in _of_requests()}
    sampling = {name: value for name, value in params.items() if name not in beside}
    of_row = {"input_ids": ids, "sampling_params": sampling, "rid": rid}
    return {"return_logprob": True, **beside, **of_row}


def output_row(
    output: Answer,
    params: dict[str, Any],
    row: int | None = 0,
    before: RequestOutput = NO_TOKENS,
    parts: Sequence[Part] = (),
) -> RequestOutput:
    """SGLang's answer to a row with these parameters; row: its number, for an error. before: the
    same answer when it had fewer tokens, whose log probs are not converted again. parts: those that
    the row asks."""
    meta, ids = output["meta_info"], list(output["output_ids"])
    finish = meta["finish_reason"] or {"type": None}
    known = len(before.logprobs)
    new = [logprob for logprob, _, _ in meta.get("output_token_logprobs", [])[known:]]
    # Before its end: of a row without a token left, the grammar refuses whatever was drawn.
    check_finite(new, row, known, parts)
    if finish == ENDED:
        finish = {"type": "abort"}
    elif finish["type"] == "abort":
        reason = finish.get("message", "aborted")
        raise RequestFailure(f"The engine aborted the request: {reason}", row=row)
    if finish["type"] == "length" and ids and ids[-1] in (params.get("stop_token_ids") or ()):
        # SGLang checks the length first, even if the last allowed token is a stop token.
        finish = {"type": "stop", "matched": ids[-1]}
    records = [translation(part).record(meta, before, row) for part in parts]
    return RequestOutput(
        token_ids=ids,
        logprobs=before.logprobs + new,
        finish_reason=finish["type"],
        matched_stop=finish.get("matched"),
        prompt_tokens=meta["prompt_tokens"],
        completion_tokens=len(ids),
        cached_tokens=meta["cached_tokens"],
        weight_versions=meta["weight_versions"],
        parts=tuple(record for record in records if record is not None),
    )


def whole_row(request: Request, new: RequestOutput) -> RequestOutput:
    """The whole answer to a request, of which `new` was computed."""
    for part in request.params.parts:
        new = translation(part).whole(request, new)
    return new
