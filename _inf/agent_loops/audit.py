"""Compares the ids that an agent loop returned with those that were sampled for it.

A trainer takes each id with mask 1 for one that the model sampled after the ids before it. A loop
that renders its history again, or cuts text, returns others, and nothing of verl says so.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence

from _inf.response.decode import decoded_text
from _inf.types import RequestOutput, Tokenizer


@dataclasses.dataclass(frozen=True)
class Sampled:
    """A request of a row, `prompt_ids`, and its answer."""

    prompt_ids: list[int]
    answer: RequestOutput


def kept_of(request: Sampled, ids: Sequence[int]) -> range:
    """The places in a row's `ids`, its prompt included, of those that `request` sampled there: up
    to the first id that differs, if all ids before them are the same."""
    start, sampled = len(request.prompt_ids), request.answer.token_ids
    if list(ids[:start]) != request.prompt_ids:
        return range(0)
    pairs = enumerate(zip(sampled, ids[start:], strict=False))
    same = next((n for n, (one, other) in pairs if one != other), None)
    return range(start, start + (min(len(sampled), len(ids) - start) if same is None else same))


def unsampled(
    whole: Sequence[int], start: int, mask: Sequence[int], requests: Sequence[Sampled]
) -> list[int]:
    """The places in a response where the mask is 1 and no request sampled the id there, or where
    one did and the mask is 0. whole: prompt and response, which begins at `start`."""
    places = {place - start for request in requests for place in kept_of(request, whole)}
    return [n for n, bit in enumerate(mask) if bit != (n in places)]


def warn_of_unsampled(outputs: Sequence[RequestOutput], tokenizer: Tokenizer) -> None:
    """Warn if rows of agent loops have ids that a trainer would take for sampled ones; the warning
    names the loop, and the place in the first such row."""
    rows = [
        (number, output.transcript)
        for number, output in enumerate(outputs)
        if output.transcript is not None and output.transcript.unsampled
    ]
    if not rows:
        return
    number, said = rows[0]
    place, count = said.unsampled[0], len(said.unsampled)
    until = said.mask[: place + 1]
    turns = sum(bit > before for before, bit in zip([0, *until], until, strict=False))
    text = decoded_text(said.ids[place : place + 1], tokenizer, skip_special_tokens=False)
    what = "was not sampled there" if said.mask[place] else "was sampled there and has mask 0"
    warnings.warn(
        f"agent loop {said.agent_loop}: in {len(rows)} of {len(outputs)} rows the mask is not that "
        f"of the ids that were sampled; in row {number} at {count} of {len(said.ids)} ids. The "
        f"first is token {place} of the response, in turn {max(turns, 1)}: {text!r} (id "
        f"{said.ids[place]}) {what}. A trainer would learn from other ids than the model's: append "
        "the sampled ids to the prompt, and never render them again (docs/agent_loops.md).",
        stacklevel=5,
    )
