"""The answers of records as log probs of both sides: what their values are is said, and padding and
values that are not finite are left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from _inf.apps.check.differences import Floats, Pairs
from _inf.apps.check.findings import Finding
from _inf.apps.check.records.reading import Bools, Record, Records
from _inf.apps.check.records.relation import shifted
from _inf.apps.check.records.sides import (
    EQUAL,
    LOGPROBS,
    NEGATED,
    OTHER,
    PROBABILITIES,
    Side,
    as_logprobs,
    kind_of,
    padding_of,
    rounding_of,
)
from _inf.apps.check.token_rows import TokenRow
from _inf.errors import ConfigError

MEANING = {
    NEGATED: ", compared as log probs",
    PROBABILITIES: ", compared as log probs",
    OTHER: "; logits?",
    EQUAL: "; it may never have been computed, or always the likeliest token was sampled",
}


@dataclasses.dataclass(frozen=True)
class Answer:
    """An answer with log probs of both sides. keep: the tokens that are compared."""

    record: Record
    a: Floats
    b: Floats
    keep: Bools

    def known(self, values: Floats) -> Floats:
        """Return the values of the tokens that are compared, and NaN for the others."""
        return np.where(self.keep, values, np.nan)


def described(records: Records) -> tuple[list[Answer], tuple[Side, Side], list[Finding]]:
    """Say what the values are, make log probs of them, and leave out padding and what is not
    finite."""
    rows = records.rows
    sides = [row.a for row in rows], [row.b for row in rows]
    sampled = np.concatenate([row.sampled for row in rows])
    values = [np.concatenate(side)[sampled] for side in sides]
    finite = np.isfinite(values[0]) & np.isfinite(values[1])
    if not finite.any():
        raise ConfigError(f"{rows[0].where}: no sampled token has two finite log probs.")
    known = [side[finite] for side in values]
    kinds = kind_of(known[0], known[1]), kind_of(known[1], known[0])
    ours, theirs = (
        [as_logprobs(values, kind) for values in side]
        for side, kind in zip(sides, kinds, strict=True)
    )
    padding = padding_of(rows, ours, theirs), padding_of(rows, theirs, ours)
    answers = []
    for row, a, b, *ends in zip(rows, ours, theirs, *padding, strict=True):
        keep = row.sampled & np.isfinite(a) & np.isfinite(b)
        keep[len(keep) - max(ends) :] = False
        answers.append(Answer(row, a, b, keep))
    if not any(answer.keep.any() for answer in answers):
        raise ConfigError(f"{rows[0].where}: all sampled tokens of all records are padding.")
    first, second = (
        Side(
            name=records.names[side],
            values=kinds[side],
            rounded_to=rounding_of(known[side]),
            lowest=float(known[side].min()),
            mean=float(known[side].mean()),
            highest=float(known[side].max()),
            padding=sum(padding[side]),
            not_finite=int((~np.isfinite(values[side])).sum()),
        )
        for side in (0, 1)
    )
    return answers, (first, second), [*_of_side(first), *_of_side(second)]


def _of_side(side: Side) -> list[Finding]:
    found = []
    if side.values != LOGPROBS:
        text = f"{side.name}: its values are {side.values}" + MEANING[side.values]
        found.append(Finding("highest_value", side.highest, 0, text))
    if side.padding:
        text = f"padding: the mask counts tokens at the ends of answers where {side.name} is 0"
        found.append(Finding("padding_tokens", side.padding, 0, text))
    if side.not_finite:
        text = f"{side.name}: sampled tokens without a finite value; a filter may exclude them"
        found.append(Finding("not_finite_tokens", side.not_finite, 0, text))
    return found


def pairs_of(answers: Sequence[Answer], shift: int) -> tuple[Pairs, list[int | None]]:
    """Return the tokens that are compared, and the step of each row."""
    rows, theirs = [], []
    for number, answer in enumerate(answers):
        a, b = shifted(answer.a, answer.b, shift)
        keep = np.logical_and(*shifted(answer.keep, answer.keep, shift))
        record, size = answer.record, len(a)
        ids = list(range(size)) if record.ids is None else record.ids[-size:] if size else []
        # Equal ids have equal log probs only with the same prompt and the same weights.
        own = -2 - number if record.prompt is None or record.ids is None else -1
        prompt = [own, record.step or 0, *(record.prompt or ())]
        rows.append(TokenRow([*prompt, *ids], len(prompt), keep.astype(int).tolist(), a.tolist()))
        theirs.append(b.tolist())
    return Pairs.of(rows, theirs), [answer.record.step for answer in answers]
