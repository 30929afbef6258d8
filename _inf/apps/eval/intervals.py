"""95 % intervals of what an evaluation measured."""

from __future__ import annotations

from collections.abc import Sequence

RESAMPLES = 10_000
AT_ONCE = 1000  # resamples that are in memory
SEED = 0


def share_interval(right: int, answers: int) -> tuple[float, float]:
    """Wilson's interval of a share of independent answers."""
    from scipy.stats import binomtest

    low, high = binomtest(right, answers).proportion_ci(method="wilson")
    return float(low), float(high)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The interval of a mean, from resampled values; None if all are equal, also of a single one:
    resampling then gives the same mean always and says nothing about other values."""
    if len(set(values)) < 2:
        return None
    import numpy
    from scipy.stats import bootstrap

    how = {"n_resamples": RESAMPLES, "batch": AT_ONCE, "method": "percentile"}
    draw = numpy.random.default_rng(SEED)
    found = bootstrap((values,), numpy.mean, rng=draw, **how).confidence_interval
    return float(found.low), float(found.high)
