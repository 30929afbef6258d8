"""The seeds of a call's rows.

Each prompt of a call, each sample of a prompt and each turn of a row has its own seed, made of the
one before. The first has that seed itself, so that the seed in a row's metadata repeats the row.
Where there is no seed (None), none is made.
"""

from __future__ import annotations

import hashlib

MAX_SEED = 2**63
# The step from one prompt's seed to the next if a call has one seed: an odd number (2**64 divided
# by the golden ratio), so that prompts and nearby seeds never get equal seeds.
SEED_STEP = 0x9E3779B97F4A7C15


def prompt_seed(seed: int | None, index: int) -> int | None:
    """Return the seed of the prompt at `index` of a call with `seed`."""
    return None if seed is None else (seed + index * SEED_STEP) % MAX_SEED


def sample_seed(seed: int | None, sample: int) -> int | None:
    """Return the seed of a prompt's sample, counted from 0."""
    return _hashed(seed, sample)


def turn_seed(seed: int | None, turn: int) -> int | None:
    """Return the seed of a row's turn, or of an agent loop's request, counted from 0."""
    return _hashed(seed, -turn)  # no sample has a negative number


def _hashed(seed: int | None, number: int) -> int | None:
    if seed is None or number == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % MAX_SEED
