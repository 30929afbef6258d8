"""The seeds of a call's rows: each prompt and each sample has its own, made of the call's seed."""

from __future__ import annotations

import hashlib

MAX_SEED = 2**63
# The step from one prompt's seed to the next if a call has one seed: an odd number (2**64 divided
# by the golden ratio), so that prompts and nearby seeds never get equal seeds.
SEED_STEP = 0x9E3779B97F4A7C15


def derived_seed(seed: int, sample: int) -> int:
    """Return a sample's seed; sample 0 has the seed itself, so a row's seed reproduces the row."""
    if sample == 0:
        return seed
    digest = hashlib.blake2b(f"{seed} {sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % MAX_SEED


def prompt_seed(seed: int, index: int) -> int:
    """Return the seed of the prompt at `index`; the first prompt has the seed itself."""
    return (seed + index * SEED_STEP) % MAX_SEED
