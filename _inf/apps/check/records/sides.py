"""Says what the values of one side are: log probs or something else, how they were rounded, and
which zeros are padding."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from _inf.apps.check.differences import Floats
from _inf.apps.check.records.reading import Record

LOGPROBS, NEGATED, PROBABILITIES, OTHER, EQUAL = (
    "log probs",
    "negative log probs",
    "probabilities",
    "no log probs",
    "all equal",
)
# Rounding lifts a log prob above 0, by no more than so many nats, and rarely more.
NOISE, RARELY = 0.05, 0.01
# The fewest zeros at an answer's end that are padding, where the other side's mean is below
# UNLIKELY (nats); and where it has zeros too, in REPEATED answers.
PADDED, PADDED_ALIKE, UNLIKELY, REPEATED = 2, 3, -0.5, 2
ELSEWHERE = 0.1  # the most zeros elsewhere where the other side is below UNLIKELY, for each of them
ENOUGH = 8  # values, to call them all equal


@dataclasses.dataclass(frozen=True)
class Side:
    """What one side's values are. name: its key. values: one of the constants above. rounded_to:
    the type that holds each value, if it is narrower than float32. lowest, highest, mean: of the
    values. padding: sampled tokens whose zeros are padding; not_finite: those without a finite
    value."""

    name: str
    values: str
    rounded_to: str | None
    lowest: float
    mean: float
    highest: float
    padding: int
    not_finite: int


def kind_of(values: Floats, other: Floats) -> str:
    """Return what the values are; other: the other side's, of the same tokens."""
    if len(values) >= ENOUGH and values.min() == values.max():
        return EQUAL
    positive = values.min() >= 0 and values.max() > NOISE
    if (values > NOISE).mean() <= RARELY and not positive:
        return LOGPROBS
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = np.corrcoef(values, other)[0, 1]
    if values.min() >= 0 and values.max() <= 1 and alike > 0:
        return PROBABILITIES
    both = other.min() >= -NOISE
    return NEGATED if values.min() >= -NOISE and (alike < 0 or both) else OTHER


def as_logprobs(values: Floats, kind: str) -> Floats:
    """Return the values as log probs; those of `OTHER` as they are."""
    if kind == PROBABILITIES:
        with np.errstate(divide="ignore"):
            return np.log(values)
    return -values if kind == NEGATED else values


def rounding_of(values: Floats) -> str | None:
    """Return `bfloat16` or `float16` if that type holds each value."""
    single = values.astype(np.float32)
    if not single.any():
        return None
    if not (single.view(np.uint32) & 0xFFFF).any():
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if (single.astype(np.float16) == single).all() else None


def padding_of(
    records: Sequence[Record], values: Sequence[Floats], others: Sequence[Floats]
) -> list[int]:
    """Return how many of each answer's last tokens have zeros that are padding: the other side
    calls them unlikely, or both have zeros for an id that is the same in all such answers."""
    unlikely, alike = [0] * len(records), [0] * len(records)
    elsewhere, pads = 0, []
    for place, (record, one, other) in enumerate(zip(records, values, others, strict=True)):
        zeros = record.sampled & (one == 0)
        count = int(np.logical_and.accumulate(zeros[::-1]).sum())
        last = len(one) - count or len(one)
        elsewhere += int((zeros[:last] & (other[:last] < UNLIKELY)).sum())
        if last == len(one):
            continue
        if count >= PADDED and other[last:].mean() < UNLIKELY:
            unlikely[place] = count
        elif count >= PADDED_ALIKE and record.ids and not other[last:].any():
            alike[place] = count
            pads.append(set(record.ids[last:]))
    if elsewhere > ELSEWHERE * sum(unlikely):  # a filter makes tokens certain, at the end too
        unlikely = [0] * len(records)
    if len(pads) < REPEATED or len(set().union(*pads)) > 1:
        alike = [0] * len(records)
    return list(map(max, unlikely, alike))
