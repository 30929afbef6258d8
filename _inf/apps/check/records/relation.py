"""Tells from the figures alone which definition turns one side's log probs into the other's: a
shift by one token, a temperature, a filter (top_p, top_k, min_p)."""

from __future__ import annotations

import dataclasses

import numpy as np

from _inf.apps.check.differences import Floats, Pairs, temperature_between

ENOUGH = 32  # tokens, to tell anything
SAME = 0.045  # how far a temperature may be from 1: noise made 0.04
# Of a filter: the most that the differences in the wrong direction are of all, and the least mean
# difference. Of tokens with less than UNLIKELY, it makes MOST likelier by MORE nats or more.
WRONG_WAY, LEAST = 0.06, 0.004
UNLIKELY, MOST, MORE = -1, 0.5, 1e-3


@dataclasses.dataclass(frozen=True)
class Relation:
    """What turns the log probs of B into those of A.

    temperature: A's, divided by B's; None if the figures do not tell. filtered: the side whose
    distribution a filter cut, "a" or "b"; kept: about the least share of the probability that it
    kept.
    """

    temperature: float | None = None
    filtered: str | None = None
    kept: float = 1.0

    @property
    def tempered(self) -> bool:
        return self.temperature is not None and abs(self.temperature - 1) > SAME


def relation(pairs: Pairs) -> Relation:
    """Compare A, `pairs.rollout`, with B, `pairs.reference`."""
    known = temperature_between(pairs)  # which turns A into B
    found = Relation(known and 1 / known)
    if found.tempered:
        return found
    for name, apart, other in (
        ("a", -pairs.difference, pairs.reference),
        ("b", pairs.difference, pairs.rollout),
    ):
        size, likelier = np.abs(apart), apart[other < UNLIKELY] > MORE
        # A filter makes no token less likely: it divides each probability by what it kept.
        wrong = -apart[apart < 0].sum() <= WRONG_WAY * size.sum()
        if wrong and size.mean() >= LEAST and likelier.sum() > MOST * len(likelier):
            kept = float(np.exp(-np.quantile(apart, 0.99)))
            return dataclasses.replace(found, filtered=name, kept=kept)
    return found


def shift_between(a: list[Floats], b: list[Floats]) -> int:
    """Return 1 if A's value at a token is B's at the next one, -1 if it is B's at the one before,
    else 0. a, b: of the tokens of each answer, NaN for those that were not sampled."""
    alike = {shift: _alike(a, b, shift) for shift in (0, 1, -1)}
    best = max(alike, key=lambda shift: alike[shift])
    return best if alike[best] > 0.8 and alike[best] > alike[0] + 0.2 else 0


def _alike(a: list[Floats], b: list[Floats], shift: int) -> float:
    both = [shifted(one, other, shift) for one, other in zip(a, b, strict=True)]
    ours, theirs = (np.concatenate(side) for side in zip(*both, strict=True))
    known = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = ours[known], theirs[known]
    if len(ours) < ENOUGH or not ours.std() or not theirs.std():
        return 0.0
    return float(np.corrcoef(ours, theirs)[0, 1])


def shifted(one: Floats, other: Floats, shift: int) -> tuple[Floats, Floats]:
    """Return the values of the same tokens, where `one` is shifted against `other`."""
    if shift == 1:
        return one[:-1], other[1:]
    return (one[1:], other[:-1]) if shift == -1 else (one, other)
