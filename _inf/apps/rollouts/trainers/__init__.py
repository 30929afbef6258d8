"""The table of trainers whose samples are read, of any engine: verl, TRL, slime, prime-rl, SkyRL.

A new trainer is a module with a `Reader`, and its name in `READERS`.
"""

from __future__ import annotations

from _inf.apps.rollouts.rollout import Rollout
from _inf.apps.rollouts.trainers.prime_rl import EPISODES, TRACES
from _inf.apps.rollouts.trainers.reader import Piece, Reader
from _inf.apps.rollouts.trainers.skyrl import SKYRL
from _inf.apps.rollouts.trainers.slime import SLIME
from _inf.apps.rollouts.trainers.trl import TRL
from _inf.apps.rollouts.trainers.verl import VERL
from _inf.errors import ConfigError, shown

# A folder is of the first one of which it has files; the last three may stand in any folder.
READERS = (EPISODES, TRACES, SKYRL, SLIME, TRL, VERL)


def reader_of(piece: object, suffix: str = ".jsonl") -> Reader | None:
    """Return the reader of a line's object, or of a whole file; None if it is of no trainer.

    suffix: of the file; any that is not in the table means JSON lines.
    """
    if not isinstance(piece, dict):
        return None
    return next(
        (
            reader
            for reader in READERS
            if reader.suffix == suffix and all(key in piece for key in reader.keys)
        ),
        None,
    )


def rollouts_of(reader: Reader, piece: Piece, row_id: str, where: str) -> list[Rollout]:
    """Return the rows of a piece. where: begins an error."""
    try:
        rows = reader.read(piece, row_id)
        if others := [row.completion for row in rows if not isinstance(row.completion, str | None)]:
            raise TypeError(f"an answer is {shown(others[0])}")
        return rows
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as failure:
        if isinstance(failure, ConfigError):
            raise ConfigError(f"{where}: {failure}") from None
        raise ConfigError(
            f"{where}: it has the keys of {reader.trainer}'s rows, but not their form: {failure!r}."
        ) from None


def looked_for() -> str:
    """Return the keys of each trainer's rows, for an error."""
    return "; ".join(f"{reader.trainer} {', '.join(reader.keys)}" for reader in READERS)
