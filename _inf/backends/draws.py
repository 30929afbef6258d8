"""Draws tokens from probabilities, on a CPU in a small part of the time of PyTorch's own operators,
and by a row's seed, so that a seed gives the same tokens on every backend that draws here.

In: probabilities and a row's seed and filters. Out: tokens, noise, and probabilities without the
excluded tokens. Knows no engine.
"""

from __future__ import annotations

import hashlib
import math

import numpy
import torch

LIKELIEST = 1024  # tokens that are sorted first: as a rule the filters exclude all others


def draw(probs: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """One token of each row; probs: rows x vocabulary, finite, of any positive sum.

    `torch.multinomial` draws a random number for each token of the vocabulary, on one core: for 32
    rows of 49,152 tokens that is a quarter of a decoding step. Here a row takes one random number,
    which chooses a block of tokens by the blocks' sums, and then a token of that block.
    """
    if probs.device.type != "cpu":
        return torch.multinomial(probs, 1, generator=generator)[:, 0]
    rows, width = probs.shape
    size = math.isqrt(width) + 1
    blocks = torch.nn.functional.pad(probs, (0, -width % size)).view(rows, -1, size)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = torch.rand(rows, 1, dtype=torch.float64, generator=generator) * sums[:, -1:]
    block = _first_above(sums, target)
    before = torch.nn.functional.pad(sums, (1, 0)).gather(1, block)
    chosen = blocks[torch.arange(rows), block[:, 0]].cumsum(-1, dtype=torch.float64)
    return (block * size + _first_above(chosen, target - before))[:, 0]


def _first_above(sums: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first place of each row whose sum is above the target, and so of a part that is not 0;
    a target that was rounded up to the last sum is taken back below it."""
    below = torch.nextafter(sums[:, -1:], torch.zeros(()).to(sums))
    return torch.searchsorted(sums, torch.minimum(target, below), right=True)


def noise(seed: int, position: int, width: int) -> torch.Tensor:
    """Exponential noise from the seed and position only; argmax(probs / noise) samples probs."""
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=16).digest()
    generator = numpy.random.Generator(numpy.random.PCG64(int.from_bytes(digest, "big")))
    return torch.from_numpy(generator.standard_exponential(width)).float()


def draw_by_seed(probs: torch.Tensor, seed: int, position: int) -> torch.Tensor:
    """The token of one row, which depends on its probabilities, the seed and the position only."""
    return (probs / noise(seed, position, len(probs)).to(probs.device)).argmax()


def filtered(
    probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Probabilities, rows x vocabulary, zero for tokens that a filter excludes; a filter is a
    column with one number per row."""
    width = probs.shape[1]
    likeliest, order = probs.topk(min(LIKELIEST, width))
    rest_is_excluded = (
        (top_k <= LIKELIEST)
        | (likeliest.sum(-1, keepdim=True) - likeliest[:, -1:] > top_p)
        | (likeliest[:, -1:] < likeliest[:, :1] * min_p)
    )
    kept = _kept(probs, likeliest, order, top_k, top_p, min_p)
    unfiltered = (top_k >= width) & (top_p >= 1) & (min_p <= 0)
    rows = ~(rest_is_excluded | unfiltered)[:, 0]
    if rows.any():
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
    """Those of these tokens, the likeliest first, that the filters leave; zero for all others."""
    excluded = ordered.cumsum(-1) - ordered > top_p
    excluded |= torch.arange(ordered.shape[1], device=probs.device) >= top_k
    excluded |= ordered < ordered[:, :1] * min_p
    return torch.zeros_like(probs).scatter(1, order, ordered.masked_fill(excluded, 0.0))
