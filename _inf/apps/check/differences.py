"""Measures how far apart two computations of the same log probs are, in nats. The names are verl's
and NeMo-RL's where they have one."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from _inf.apps.check.token_rows import TokenRow
from _inf.runtime.extras import without_verl

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

RATIOS = (0.9, 1.1)
LARGEST = 60.0  # exp of more would be infinite


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Two log probs for each token.

    row: the sequence it is in. position: its place there. context: a number that tokens after equal
    ids share.
    """

    row: Ints
    position: Ints
    token: Ints
    context: Ints
    rollout: Floats
    reference: Floats

    @classmethod
    def of(cls, rows: Sequence[TokenRow], theirs: Sequence[Sequence[float]]) -> Pairs:
        """Pair the sampled tokens of the rows. theirs: the reference's log probs of the last tokens
        of each row."""
        found = []
        for number, (row, reference) in enumerate(zip(rows, theirs, strict=True)):
            contexts = list(itertools.accumulate(row.ids, lambda *both: hash(both), initial=0))
            for place in row.sampled:
                last = place - len(row.ids)  # as counted from the end
                both = row.logprobs[last], reference[last]
                found.append((number, place, row.ids[place], contexts[place], *both))
        return cls(*map(np.array, zip(*found, strict=True)))

    @property
    def difference(self) -> Floats:
        """Reference minus rollout."""
        return self.reference - self.rollout

    def __len__(self) -> int:
        return len(self.row)


def distances(rollout: object, reference: object, prefix: str = "") -> dict[str, float]:
    """Return the mean and the largest difference, and NeMo-RL's `token_mult_prob_error`."""
    apart = np.abs(np.asarray(reference, np.float64) - np.asarray(rollout, np.float64))
    return {
        f"{prefix}logprobs_diff_mean": float(apart.mean()),
        f"{prefix}logprobs_diff_max": float(apart.max()),
        f"{prefix}token_mult_prob_error": float(np.exp(apart.clip(max=LARGEST)).mean()),
    }


def comparison(pairs: Pairs) -> dict[str, float]:
    """Return all numbers of one comparison."""
    ratio = np.exp(pairs.difference.clip(-LARGEST, LARGEST))
    outside = (ratio < RATIOS[0]) | (ratio > RATIOS[1])
    return {
        **distances(pairs.rollout, pairs.reference),
        f"ratio_outside_{RATIOS[0]}_{RATIOS[1]}": float(outside.mean()),
        **({} if without_verl("check") else _verls(pairs)),
    }


def _verls(pairs: Pairs) -> dict[str, float]:
    """Return verl's `training/rollout_probs_diff_*` and `rollout_corr/*`, by its own functions."""
    import torch
    from verl import DataProto
    from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics
    from verl.utils.debug.metrics import calculate_debug_metrics

    lengths = np.unique(pairs.row, return_counts=True)[1].tolist()
    columns = (pairs.rollout, pairs.reference, np.ones(len(pairs)))
    rollout, trainer, mask = (
        torch.nn.utils.rnn.pad_sequence(torch.tensor(column).split(lengths), batch_first=True)
        for column in columns
    )
    batch = {"rollout_log_probs": rollout, "old_log_probs": trainer, "response_mask": mask}
    named: dict[str, float] = calculate_debug_metrics(
        DataProto.from_dict({**batch, "responses": mask.long()})
    )
    del named["training/rollout_probs_diff_valid"]
    found = compute_offpolicy_metrics(trainer, rollout, mask)
    return named | {f"rollout_corr/{name}": value for name, value in found.items()}


def temperature_between(pairs: Pairs) -> float | None:
    """Return the temperature that alone turns the rollout's log probs into the reference's, if
    there is one: it divides every log odds between two tokens after equal ids. None if it does not
    explain 99 % of them, or if fewer than eight are known.
    """
    _, chosen = np.unique([pairs.context, pairs.token], axis=1, return_index=True)
    both = np.diff(pairs.context[chosen]) == 0  # and the next token is after equal ids
    if both.sum() < 8:
        return None
    ours, theirs = (
        np.diff(logprobs[chosen])[both] for logprobs in (pairs.rollout, pairs.reference)
    )
    if not (square := float(ours @ ours)) or not theirs.any():
        return None
    slope = float(ours @ theirs) / square
    left = theirs - slope * ours
    explained = 1 - float(left @ left) / float(theirs @ theirs)
    return 1 / slope if explained > 0.99 and slope > 0 and math.isfinite(1 / slope) else None
