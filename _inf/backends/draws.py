"""Draws tokens from probabilities, on a CPU in a small part of the time of PyTorch's own operators,
and by a row's seed, so that a seed gives the same tokens on every backend that draws here.

On a GPU nothing here waits for the device, except `filtered`, once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy
import torch

LIKELIEST = 1024  # tokens that are sorted first: as a rule the filters exclude all others
AT_ONCE = 2**25  # numbers that are hashed at once, for their memory
# Odd numbers that mix 32 and 64 bits well: those of lowbias32 and splitmix64, public domain.
STEP, FIRST, SECOND = 0x9E3779B1 - 2**32, 0x7FEB352D, 0x846CA68B - 2**32
MIXERS = (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)


def draw(probs: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """One token of each row; probs: rows x vocabulary, of any positive sum. A row of NaN
    gets a token like any other.

    `torch.multinomial` draws a random number for each token of the vocabulary, on one core. Here a
    row takes one random number.
    """
    if probs.device.type != "cpu":
        # As `torch.multinomial`, which reads all of it three more times, and ends the process at a
        # NaN.
        noise = torch.empty_like(probs).exponential_(generator=generator)
        return torch.div(probs, noise, out=noise).argmax(-1)
    sums = probs.cumsum(-1, dtype=torch.float64)
    target = torch.rand(len(probs), 1, dtype=torch.float64, generator=generator) * sums[:, -1:]
    return _first_above(sums, target)[:, 0]


def _first_above(sums: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first place of each row whose sum is above the target, and so of a part that is not 0;
    a target that was rounded up to the last sum is taken back below it. No sum is above NaN."""
    below = torch.nextafter(sums[:, -1:], torch.zeros(()).to(sums))
    places = torch.searchsorted(sums, torch.minimum(target, below), right=True)
    return places.clamp_(max=sums.shape[1] - 1)


def draw_by_seed(
    probs: torch.Tensor, seeds: Sequence[int | None], positions: Sequence[int]
) -> torch.Tensor:
    """One token of each row, which depends on its probabilities, its seed and its position only;
    probs: rows x vocabulary, of any positive sum."""
    keys = keys_of(seeds, positions).to(probs.device, non_blocking=True)
    rows = AT_ONCE // probs.shape[1] or 1
    parts = zip(probs.split(rows), keys.split(rows), strict=True)
    return torch.cat(
        [(part / _negative_noise(key, part.shape[1])).argmin(-1) for part, key in parts]
    )


def draw_rows(
    probs: torch.Tensor,
    seeds: Sequence[int | None],
    positions: Sequence[int],
    generator: torch.Generator | None = None,
    by_seed: Callable[..., torch.Tensor] = draw_by_seed,
) -> torch.Tensor:
    """One token of each row, by its seed, or by chance for a seed of None."""
    if None not in seeds:
        return by_seed(probs, seeds, positions)
    tokens = draw(probs, generator)
    if seeded := [row for row, seed in enumerate(seeds) if seed is not None]:
        rows = torch.tensor(seeded).to(probs.device, non_blocking=True)
        own = [seeds[row] for row in seeded], [positions[row] for row in seeded]
        tokens[rows] = by_seed(probs[rows], *own)
    return tokens


def keys_of(seeds: Sequence[int | None], positions: Sequence[int]) -> torch.Tensor:
    """64 bits of each row's seed (below 2**63) and position, as two int32: rows x 2."""
    mixed = numpy.zeros(len(seeds), dtype=numpy.uint64)
    for numbers in (seeds, positions):
        mixed += numpy.array(numbers, dtype=numpy.uint64) + numpy.uint64(0x9E3779B97F4A7C15)
        for shift, factor in MIXERS:
            mixed ^= mixed >> numpy.uint64(shift)
            mixed *= numpy.uint64(factor)
    return torch.from_numpy(mixed.view(numpy.int32).reshape(-1, 2))


def _negative_noise(keys: torch.Tensor, width: int) -> torch.Tensor:
    """Exponential noise below 0, rows x width, float32: argmax(probs / -noise) samples probs.

    Each token's number is hashed with its row's key. 31 bits of the hash are a number below 0 and
    above -1, the finest near 0, where the noise is that decides.
    """
    hashed = _steps(width, keys.device) + keys[:, :1]
    hashed ^= hashed >> 16
    hashed *= FIRST
    hashed += keys[:, 1:]
    hashed ^= hashed >> 15
    hashed *= SECOND
    hashed ^= hashed >> 16
    return hashed.float().abs_().mul_(2**-31 * (2**-24 - 1)).sub_(2**-32).log1p_()


@functools.lru_cache(maxsize=4)
def _steps(width: int, device: torch.device) -> torch.Tensor:
    return torch.arange(width, dtype=torch.int32, device=device) * STEP


def filtered(
    probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Probabilities, rows x vocabulary, zero for tokens that a filter excludes; a filter is a
    column with one number per row."""
    width = probs.shape[1]
    top_p = top_p.masked_fill(top_p >= 1, math.inf)  # a sum of all tokens may be above 1
    likeliest, order = probs.topk(min(LIKELIEST, width))
    rest_is_excluded = (
        (top_k <= LIKELIEST)
        | (likeliest.sum(-1, keepdim=True) - likeliest[:, -1:] > top_p)
        | (likeliest[:, -1:] < likeliest[:, :1] * min_p)
    )
    kept = _kept(probs, likeliest, order, top_k, top_p, min_p)
    unfiltered = (top_k >= width) & (top_p >= 1) & (min_p <= 0)
    rows = (~(rest_is_excluded | unfiltered))[:, 0].nonzero()[:, 0]
    if len(rows):
        filters = (column[rows] for column in (top_k, top_p, min_p))
        kept[rows] = _kept(probs[rows], *probs[rows].sort(descending=True), *filters)
    return torch.where(unfiltered, probs, kept)


def _kept(
    probs: torch.Tensor,
    ordered: torch.Tensor,
    order: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
) -> torch.Tensor:
    """The probabilities of the tokens that the filters leave; zero for all others. ordered, order:
    the likeliest probabilities, and their tokens."""
    excluded = ordered.cumsum(-1) - ordered > top_p
    excluded |= torch.arange(ordered.shape[1], device=probs.device) >= top_k
    excluded |= ordered < ordered[:, :1] * min_p
    return torch.zeros_like(probs).scatter(1, order, ordered.masked_fill(excluded, 0.0))
