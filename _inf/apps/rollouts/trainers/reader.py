"""A row of the table of readers, and what several readers do with a trainer's keys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeAlias

from _inf.apps.rollouts.rollout import Rollout
from _inf.types import JSON

# What a reader reads at once: a line's object, a table's columns, or the object of a .pt file.
Piece: TypeAlias = Mapping[str, Any]

# A key of `extra` that says what the reward is, where a row has several; a page shows it.
SCORE_IS = "score_is"

_OWN = {*(field.name for field in dataclasses.fields(Rollout)), "prompt", "ground_truth", "task"}


class Reader(NamedTuple):
    """How one trainer's samples become `Rollout`s.

    suffix, keys: of its files; and the keys that all its pieces have. read: a piece and its name to
    its rows. folders: patterns of its files below a run's folder; the first one that has any is
    read. apart: patterns of names there that are left out, if there are others.
    """

    trainer: str
    suffix: str
    keys: tuple[str, ...]
    read: Callable[[Piece, str], list[Rollout]]
    folders: tuple[str, ...]
    apart: tuple[str, ...] = ()


def other_keys(row: Mapping[str, Any], taken: Collection[str]) -> JSON:
    """Return the keys that are not taken, with `_` after a name that means something here."""
    return {
        f"{key}_" if key in _OWN else key: value for key, value in row.items() if key not in taken
    }


def finite(value: object) -> float | None:
    """Return a finite number, and true and false as 1 and 0; None for anything else."""
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # of an int
        return None
    return number if math.isfinite(number) else None


def listed(names: Collection[str]) -> str:
    """Return `a, b and c`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
