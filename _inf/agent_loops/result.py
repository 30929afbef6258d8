"""Makes a row of what an agent loop returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from _inf.agent_loops.audit import Sampled, kept_of, unsampled
from _inf.errors import RequestFailure, shown
from _inf.request.prompts import as_list
from _inf.types import RequestOutput, Transcript


def answered_row(
    loop: str, said: Any, requests: Sequence[Sampled], widths: tuple[int, int]
) -> RequestOutput:
    """Turn verl's `AgentLoopOutput` into a row; `requests`: those of its loop.

    Its log probs are the loop's own, or the recorded ones where it gives none. Raises
    `RequestFailure` where verl's batch would fail, or take one value for another in silence.
    """
    prompt, ids = _ints(said, "prompt_ids"), _ints(said, "response_ids")
    mask, given = _ints(said, "response_mask"), said.response_logprobs
    _check_lengths(prompt, ids, mask, given, widths)
    if any(value is not None for value in (said.multi_modal_data or {}).values()):
        raise RequestFailure("multi_modal_data: agent loops take text only here.")
    whole = [*prompt, *ids]
    logprobs = _recorded(whole, len(prompt), requests) if given is None else list(map(float, given))
    answer, last = _last_answer(whole, len(prompt), mask, requests)
    sampled = [n for n, bit in enumerate(mask) if bit]
    return RequestOutput(
        token_ids=[ids[n] for n in sampled],
        logprobs=[logprobs[n] for n in sampled],
        finish_reason=last.finish_reason,
        matched_stop=last.matched_stop,
        prompt_tokens=len(prompt),
        completion_tokens=len(sampled),
        cached_tokens=requests[0].answer.cached_tokens if requests else 0,
        prompt_token_ids=prompt,
        transcript=Transcript(
            ids=ids,
            mask=mask,
            logprobs=[value if bit else 0.0 for value, bit in zip(logprobs, mask, strict=True)],
            answer_ids=answer,
            num_turns=said.num_turns,
            reward_scores={} if said.reward_score is None else {"reward_score": said.reward_score},
            agent_loop=loop,
            unsampled=unsampled(whole, len(prompt), mask, requests),
            extra_fields=said.extra_fields or {},
        ),
    )


def _ints(said: Any, name: str) -> list[int]:
    try:
        return [int(value) for value in as_list(getattr(said, name))]
    except (AttributeError, TypeError, ValueError):
        raise RequestFailure(
            f"run() returned {shown(said)}: {name} must be a list of ints; return verl's "
            "AgentLoopOutput."
        ) from None


def _check_lengths(
    prompt: list[int], ids: list[int], mask: list[int], logprobs: Any, widths: tuple[int, int]
) -> None:
    for name, values, most, key in (
        ("prompt_ids", prompt, widths[0], "rollout.prompt_length"),
        ("response_ids", ids, widths[1], "rollout.response_length"),
    ):
        if len(values) > most:
            raise RequestFailure(
                f"{name}: {len(values)} ids are above {most}, the width of a batch; cut them in "
                f"run(), as verl's own loops do, or raise {key}."
            )
    for name, values in (("response_mask", mask), ("response_logprobs", logprobs)):
        if values is not None and len(values) != len(ids):
            raise RequestFailure(f"{name}: {len(values)} values for {len(ids)} response_ids.")
    if set(mask) - {0, 1}:
        raise RequestFailure("response_mask: its values must be 0 and 1.")


def _recorded(whole: list[int], start: int, requests: Sequence[Sampled]) -> list[float]:
    """The log prob of each id of the response; NaN for those that were not sampled there."""
    known = {
        place: logprob
        for request in requests
        for place, logprob in zip(kept_of(request, whole), request.answer.logprobs, strict=False)
    }
    return [known.get(place, math.nan) for place in range(start, len(whole))]


def _last_answer(
    whole: list[int], start: int, mask: list[int], requests: Sequence[Sampled]
) -> tuple[list[int], RequestOutput]:
    """The ids of the last answer in a row, and how it ended: as its request did, or by `length` if
    the loop has cut it. Where no request is found, it is the last run of ids with mask 1."""
    end = start + max((n + 1 for n, bit in enumerate(mask) if bit), default=0)
    for request in reversed(requests):
        kept = kept_of(request, whole)
        if kept and kept.stop >= end:
            whole_answer = len(kept) == len(request.answer.token_ids)
            cut = RequestOutput(finish_reason="length")
            return whole[kept.start : kept.stop], request.answer if whole_answer else cut
    begin = max((n + 1 for n, bit in enumerate(mask[: end - start]) if not bit), default=0)
    ended = requests[-1].answer.finish_reason if requests else "stop"
    return whole[start + begin : end], RequestOutput(finish_reason=ended)
