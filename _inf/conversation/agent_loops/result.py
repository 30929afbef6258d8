"""Makes a row of what an agent loop returns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from _inf.conversation.recorder import Recorder, Sampled
from _inf.errors import RequestFailure, shown
from _inf.turns import Transcript
from _inf.types import RequestOutput


def answered_row(
    loop: str, returned: Any, recorder: Recorder, widths: tuple[int, int], vocabulary: int
) -> RequestOutput:
    """Turn verl's `AgentLoopOutput` into a row; recorder: of the loop's requests; vocabulary: how
    many tokens the model has.

    Its log probs are the loop's own, or the recorded ones where it gives none. Raises
    `RequestFailure` where verl's batch would fail, or take one value for another in silence.
    """
    if not hasattr(returned, "response_logprobs"):
        raise RequestFailure(f"run() returned {shown(returned)}; return verl's AgentLoopOutput.")
    prompt, ids = returned.prompt_ids, returned.response_ids
    mask, given = returned.response_mask, returned.response_logprobs
    _check_lengths(prompt, ids, mask, given, widths)
    for name, tokens in (("prompt_ids", prompt), ("response_ids", ids)):
        if unknown := [token for token in tokens if not 0 <= token < vocabulary]:
            raise RequestFailure(f"{name} has {unknown[0]}, outside the model's vocabulary.")
    if any(value is not None for value in (returned.multi_modal_data or {}).values()):
        raise RequestFailure("multi_modal_data: agent loops take text only here.")
    sampled = recorder.logprobs(prompt, ids)
    logprobs = [sampled.get(place, math.nan) for place in range(len(ids))]
    if given is not None:
        logprobs = given
    last, ended = _last_answer([*prompt, *ids], len(prompt), mask, recorder.sampled)
    reward = returned.reward_score
    transcript = Transcript(
        ids=ids,
        mask=mask,
        logprobs=[value if bit else 0.0 for value, bit in zip(logprobs, mask, strict=True)],
        answers=[last] if last else [],
        num_turns=returned.num_turns,
        reward_scores={} if reward is None else {"reward_score": reward},
        agent_loop=loop,
        unsampled=[place for place, bit in enumerate(mask) if bit != (place in sampled)],
        extra_fields=returned.extra_fields or {},
    )
    return recorder.row(prompt, ended, transcript)


def _check_lengths(
    prompt: list[int],
    ids: list[int],
    mask: list[int],
    logprobs: list[float] | None,
    widths: tuple[int, int],
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
    for name, given in (("response_mask", mask), ("response_logprobs", logprobs)):
        if given is not None and len(given) != len(ids):
            raise RequestFailure(f"{name}: {len(given)} values for {len(ids)} response_ids.")
    if set(mask) - {0, 1}:
        raise RequestFailure("response_mask: its values must be 0 and 1.")


def _last_answer(
    whole: list[int], start: int, mask: list[int], requests: Sequence[Sampled]
) -> tuple[range, RequestOutput]:
    """Where a row's last answer stands, and how it ended: as its request did, or by `length` if the
    loop has cut it. Where no request is found, it is the last run of ids with mask 1."""
    end = start + max((n + 1 for n, bit in enumerate(mask) if bit), default=0)
    for request in reversed(requests):
        kept = request.kept_in(whole)
        if kept and kept.stop >= end:
            whole_answer = len(kept) == len(request.answer.token_ids)
            cut = RequestOutput(finish_reason="length")
            places = range(kept.start - start, kept.stop - start)
            return places, request.answer if whole_answer else cut
    begin = max((n + 1 for n, bit in enumerate(mask[: end - start]) if not bit), default=0)
    ended = requests[-1].answer.finish_reason if requests else "stop"
    return range(begin, end - start), RequestOutput(finish_reason=ended)
