"""Draws the tokens of a batch on a CPU, in the scheduler's process.

`patches.py` says which functions of sglang 0.5.9 (`srt/layers/sampler.py`) these replace there, and
why. A batch with seeds of SGLang's own (its deterministic mode) takes SGLang's path.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from _inf.backends import draws

Sample = Callable[..., torch.Tensor]


def sample(
    original: Sample,
    probs: torch.Tensor,
    sampling_seed: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
) -> torch.Tensor:
    """Wrap `sampling_from_probs_torch`."""
    if sampling_seed is not None or probs.device.type != "cpu":
        return original(probs, sampling_seed, positions)
    return draws.draw(probs).int()


def sample_filtered(
    original: Sample,
    probs: torch.Tensor,
    top_ks: torch.Tensor,
    top_ps: torch.Tensor,
    min_ps: torch.Tensor,
    need_min_p_sampling: bool,
    sampling_seed: torch.Tensor | None,
    positions: torch.Tensor,
) -> torch.Tensor:
    """Wrap `top_k_top_p_min_p_sampling_from_probs_torch`."""
    if sampling_seed is not None or probs.device.type != "cpu":
        return original(
            probs, top_ks, top_ps, min_ps, need_min_p_sampling, sampling_seed, positions
        )
    filters = (column[:, None] for column in (top_ks, top_ps, min_ps))
    return draws.draw(draws.filtered(probs, *filters)).int()
