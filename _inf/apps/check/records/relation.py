"""Tells from the figures alone which definition turns one side's log probs into the other's: a
shift by one token, a temperature, a filter (top_p, top_k, min_p)."""

from __future__ import annotations

import dataclasses

import numpy as np

from _inf.apps.check.differences import Floats, Pairs, temperature_between

ENOUGH = 32  # tokens, to tell anything
FEW = 20  # tokens on either side of one half, to bound a temperature
SAME = 0.045  # how far a temperature may be from 1: noise made 0.04
# Of a filter: the most that the differences in the wrong direction are of all, and the same where
# tokens that it made certain tell it; and the least mean difference.
WRONG_WAY, WITH_CERTAIN, LEAST = 0.06, 0.3, 0.004
# A log prob of 0 is a filter's where the other side has less than CERTAIN and no temperature makes
# it 0 in float32: one that multiplies the log odds by no more than STEEP, to less than ODDS. The
# least share of such tokens.
CERTAIN, STEEP, ODDS, ZEROS = -0.005, 2.5, 7, 0.01
# Of tokens with less than UNLIKELY, a filter makes MOST likelier by MORE nats or more.
UNLIKELY, MOST, MORE = -1, 0.5, 1e-3
COLDER = "a temperature far below the other's"
TRAINED = "weights that were trained on these very tokens"
# A filter multiplies the log odds of some likely tokens by less than FLAT; bounds of a temperature
# do not tell less than that either.
FLAT = 1.1


@dataclasses.dataclass(frozen=True)
class Relation:
    """What turns the log probs of B into those of A.

    temperature: A's, divided by B's; None if the figures do not tell. bounds: it lies between them;
    None if pairs of tokens after equal ids tell it. filtered: the side whose distribution a filter
    cut, "a" or "b"; kept: about the least share of the probability that it kept; else_: what else
    the figures allow.
    """

    temperature: float | None
    bounds: tuple[float, float] | None
    filtered: str | None = None
    kept: float | None = None
    else_: str = ""

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
    found = Relation(temperature, bounds)
    low, high = bounds or (temperature, temperature)
    for name, one, other, sharper in (("a", a, b, low and 1 / low), ("b", b, a, high)):
        wrong, sharper = _wrong_way(one, other), sharper or _steepest(one, other)
        kept = _made_certain(one, other, sharper)
        if kept is not None and (found.tempered or wrong <= WITH_CERTAIN):
            if sharper <= STEEP:
                return dataclasses.replace(found, filtered=name, kept=kept)
            if not found.tempered:
                return dataclasses.replace(found, filtered=name, kept=kept, else_=COLDER)
        if wrong <= WRONG_WAY and sharper < FLAT and not found.tempered:
            apart = one - other
            likelier = apart[other < UNLIKELY] > MORE
            if np.abs(apart).mean() >= LEAST and likelier.sum() > MOST * len(likelier):
                kept = float(np.exp(-np.quantile(apart, 0.99)))
                return dataclasses.replace(found, filtered=name, kept=kept, else_=TRAINED)
    return found


def _wrong_way(one: Floats, other: Floats) -> float:
    """Return how much of the differences is of tokens that `one` makes less likely. A filter makes
    none: it divides each probability by what it kept."""
    apart = one - other
    return float(-apart[apart < 0].sum() / max(np.abs(apart).sum(), 1e-9))


def _made_certain(one: Floats, other: Floats, sharper: float) -> float | None:
    """Return the least share of the probability that a filter of `one` kept, if it made tokens the
    only ones left. sharper: by how much a temperature may multiply the log odds of `one`."""
    if (one == one.round(2)).all():  # two digits make zeros too
        return None
    odds = _log_odds(other) * np.clip(sharper, 1, STEEP)
    zeros = (one == 0) & (other < CERTAIN) & (odds < ODDS)
    return float(np.exp(np.quantile(other[zeros], 0.01))) if zeros.mean() > ZEROS else None


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
    unlikely, high = theirs < -1, _steepest(sharper, other)
    if unlikely.sum() < FEW or high == np.inf:
        return None
    low = float(np.quantile(ours[unlikely] / theirs[unlikely], 0.99))
    return (low, high) if FLAT < low <= high else None


def _steepest(sharper: Floats, other: Floats) -> float:
    """Return the most that a temperature may multiply the other side's log odds by; infinite if too
    few tokens tell. Tokens that are certain say nothing."""
    ours, theirs = _log_odds(sharper), _log_odds(other)
    likely = (theirs > 1) & (theirs < 9) & (sharper < -1e-6)
    if likely.sum() < FEW:
        return np.inf
    return float(np.quantile(ours[likely] / theirs[likely], 0.01).clip(0))


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
