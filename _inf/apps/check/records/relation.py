"""Tells from the figures alone which definition turns one side's log probs into the other's: a
shift by one token, a temperature, a filter (top_p, top_k, min_p)."""

from __future__ import annotations

import dataclasses

import numpy as np

from _inf.apps.check.differences import Floats, Pairs, temperature_between

ENOUGH = 32  # tokens, to tell a shift
FEW = 20  # tokens on either side of one half, to bound a temperature
SAME = 0.05  # how far a temperature may be from 1
# Of a filter: the share of differences in the wrong direction, the least mean difference, and a
# log prob that no filter-free float32 softmax makes 0.
WRONG_WAY, LEAST, CERTAIN = 0.06, 0.004, -0.005
ZEROS = 0.01  # the least share of tokens that only a filter makes certain


@dataclasses.dataclass(frozen=True)
class Relation:
    """What turns the log probs of B into those of A.

    temperature: A's, divided by B's; None if the figures do not tell. exact: whether pairs of
    tokens after equal ids tell it; otherwise it is between `bounds`. filtered: the side whose
    distribution a filter cut, "a" or "b"; kept: the least share of the probability that it kept.
    """

    temperature: float | None
    bounds: tuple[float, float] | None
    filtered: str | None
    kept: float | None

    @property
    def equal(self) -> bool:
        return self.filtered is None and not self.tempered

    @property
    def tempered(self) -> bool:
        return self.temperature is not None and abs(self.temperature - 1) > SAME


def relation(pairs: Pairs) -> Relation:
    """Compare A, `pairs.rollout`, with B, `pairs.reference`."""
    a, b = pairs.rollout, pairs.reference
    bounds = None
    if known := temperature_between(pairs):  # which turns A into B
        temperature: float | None = 1 / known
    else:
        bounds = _temperature_bounds(a, b)
        temperature = bounds and float(np.sqrt(bounds[0] * bounds[1]))
    tempered = temperature is not None and abs(temperature - 1) > SAME
    for name, one, other in (("a", a, b), ("b", b, a)):
        kept = _kept(one, other, only_zeros=tempered)
        if kept is not None:
            return Relation(temperature, bounds, name, kept)
    return Relation(temperature, bounds, None, None)


def _kept(one: Floats, other: Floats, *, only_zeros: bool) -> float | None:
    """Return the least share of the probability that a filter of `one` kept, or None if there was
    none: a filter divides each probability by what it kept, so that it lowers none and makes the
    only token left certain. only_zeros: look for certain tokens alone."""
    apart = one - other
    certain = float(((one == 0) & (other < CERTAIN)).mean())
    if only_zeros:
        return float(np.exp(other[one == 0].min())) if certain > ZEROS else None
    size = float(np.abs(apart).sum())
    wrong = float(-apart[apart < 0].sum())
    if size / len(apart) < LEAST or wrong > WRONG_WAY * size:
        return None
    return float(np.exp(-np.quantile(apart, 0.99)))


def _temperature_bounds(a: Floats, b: Floats) -> tuple[float, float] | None:
    """Return bounds of A's temperature as divided by B's, where it is not 1.

    With s > 1, log odds of A are at least s times those of B: for a token with probability p and
    rivals r, sum(r ** s) <= sum(r) ** s. So each token with p > 1/2 bounds s from above, and each
    with p < 1/2 from below. For s < 1 the same holds with A and B exchanged.
    """
    if (sharper := _slope(a, b)) is not None:
        return 1 / sharper[1], 1 / sharper[0]
    return _slope(b, a)


def _slope(sharper: Floats, other: Floats) -> tuple[float, float] | None:
    ours, theirs = _log_odds(sharper), _log_odds(other)
    likely, unlikely = (theirs > 1) & (theirs < 9), theirs < -1
    if likely.sum() < FEW or unlikely.sum() < FEW:
        return None
    low = float(np.quantile(ours[unlikely] / theirs[unlikely], 0.99))
    high = float(np.quantile(ours[likely] / theirs[likely], 0.01))
    return (low, high) if 1 + SAME < low <= high else None


def _log_odds(logprobs: Floats) -> Floats:
    logprobs = np.minimum(logprobs, -1e-7)
    return logprobs - np.log(-np.expm1(logprobs))


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
