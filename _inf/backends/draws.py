"""Draws tokens from probabilities, by a row's seed, so that a seed gives the same tokens on every
backend that draws them here.

In: probabilities and a row's seed and filters. Out: noise, and probabilities without the excluded
tokens. Knows no engine.
"""

from __future__ import annotations

import hashlib

import torch


def noise(seed: int, position: int, width: int) -> torch.Tensor:
    """Exponential noise from the seed and position only; argmax(probs / noise) samples probs."""
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "big"))
    return torch.empty(width).exponential_(generator=generator)


def filtered(
    probs: torch.Tensor,
    top_k: int | torch.Tensor,
    top_p: float | torch.Tensor,
    min_p: float | torch.Tensor,
) -> torch.Tensor:
    """Probabilities (rows x vocabulary, or one row), zero for tokens that a filter excludes; a
    filter is one number, or a column with one number per row."""
    ordered, order = probs.sort(dim=-1, descending=True)
    excluded = ordered.cumsum(-1) - ordered > top_p
    excluded |= torch.arange(ordered.shape[-1], device=probs.device) >= top_k
    excluded |= ordered < ordered[..., :1] * min_p
    return torch.zeros_like(probs).scatter(-1, order, ordered.masked_fill(excluded, 0.0))
