"""Rows that fail: because of NaN or infinite numbers, or alone while the others go on."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence

from _inf.errors import PromptError, RequestFailure
from _inf.parts.part import Part
from _inf.types import Request, RequestOutput


def check_finite(
    logprobs: Sequence[float | None],
    row: int | None,
    first: int = 0,
    parts: Sequence[Part] = (),
) -> None:
    """Raise if a log prob is NaN or infinite: the logits were too. row: its place in the call; None
    if it is the turn of a conversation, which knows its own. first: the number of their first
    token. parts: those that the row asks, of which one may have left it no token."""
    if math.isfinite(sum(filter(None, logprobs))):
        return
    place = next(i for i, v in enumerate(logprobs) if v is not None and not math.isfinite(v))
    index = first + place
    what = "It" if row is None else f"Row {row} of this call"
    for why in (part.no_token for part in parts if part.no_token):
        raise RequestFailure(f"{what} has no token left for token {index}: {why}", row=row)
    raise RequestFailure(
        f"{what} has the log prob {logprobs[place]} at token {index}: the model's "
        "numbers are too large for its dtype. Likeliest causes: rollout.dtype is float16 and the "
        "model was trained in bfloat16 (use bfloat16 or float32), or its weights diverged in "
        "training (load an earlier checkpoint).",
        row=row,
    )


async def row_or_failure(request: Request, answer: Awaitable[RequestOutput]) -> RequestOutput:
    """Await a row of `generate`. What goes wrong with it alone is raised, or is a row, too."""
    try:
        return await answer
    except (RequestFailure, PromptError) as failure:
        return row_instead(request, failure)


def row_instead(request: Request, failure: Exception) -> RequestOutput:
    """The row in place of a failure of a request alone, or raise it."""
    rows = (part.failed(request, failure) for part in request.params.parts)
    row: RequestOutput | None = next(filter(None, rows), None)
    if row is None:
        raise failure
    return row
