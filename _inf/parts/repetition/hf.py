"""Looks for a repetition after each token."""

from __future__ import annotations

from collections.abc import Sequence

from _inf.backends.hf import translation
from _inf.parts.repetition import REPETITION, Repetition, repeats


class Translation(translation.Translation[Repetition]):
    def ended(self, ids: Sequence[int]) -> str | None:
        return REPETITION if repeats(ids, self.part.repetition_detection) else None
