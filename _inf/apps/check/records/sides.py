"""Says what the values of one side are: log probs or something else, how they were rounded, and
which zeros are padding."""

from __future__ import annotations

import dataclasses

import numpy as np

from _inf.apps.check.differences import Floats
from _inf.apps.check.records.reading import Record

LOGPROBS, NEGATED, PROBABILITIES, OTHER = (
    "log probs",
    "negative log probs",
    "probabilities",
    "no log probs",
)
# Rounding lifts a log prob above 0, by no more than so many nats, and rarely more.
NOISE, RARELY = 0.05, 0.01
# Zeros at an answer's end that count as padding, where the other side's mean is below UNLIKELY
# (nats); and where it has zeros too, for one repeated id.
PADDED, PADDED_ALIKE, UNLIKELY = 2, 3, -0.5


@dataclasses.dataclass(frozen=True)
class Side:
    """What one side's values are. name: its key. covers: what its lists cover, with the number of
    records. padded: how many lists have zeros after their end. values: one of the constants above.
    rounded_to: the type that holds each value, if it is narrower than float32. lowest, highest,
    mean: of the values. padding: sampled tokens whose zeros are padding; not_finite: those without
    a finite value."""

    name: str
    covers: dict[str, int]
    padded: int
    values: str
    rounded_to: str | None
    lowest: float
    mean: float
    highest: float
    padding: int
    not_finite: int


def kind_of(values: Floats, other: Floats) -> str:
    """Return what the values are; other: the other side's, of the same tokens."""
    if (values > NOISE).mean() <= RARELY:
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


def padding_of(record: Record, values: Floats, other: Floats) -> int:
    """Return how many of the answer's last tokens have zeros that are padding: the other side calls
    them unlikely, or both have zeros for one repeated id."""
    last = len(values)
    while last and values[last - 1] == 0 and record.sampled[last - 1]:
        last -= 1
    count = len(values) - last
    if count >= PADDED and other[last:].mean() < UNLIKELY:
        return count
    ids = set((record.ids or range(len(values)))[last:])
    return count if count >= PADDED_ALIKE and len(ids) == 1 and not other[last:].any() else 0
