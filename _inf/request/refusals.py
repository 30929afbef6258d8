"""The prompts of a call that are refused: by default the first one ends the call; with
`on_error="row"` each becomes its rows, and the others are answered."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from _inf.errors import ConfigError, PromptError, at_fault, error_text


class Refusals:
    """What was wrong with each refused prompt of a call, by its index.

    kept: whether a refusal is noted here; otherwise it is raised.
    """

    def __init__(self, *, kept: bool = False) -> None:
        self._kept = kept
        self._reasons: dict[int, str] = {}

    @contextlib.contextmanager
    def of(self, index: int) -> Iterator[None]:
        """Note, or raise, a refusal of prompt `index` that is raised inside."""
        try:
            with at_fault(index=index):
                yield
        except (PromptError, ConfigError) as failure:
            if not self._kept:
                raise
            self._reasons[index] = error_text(failure)

    def __contains__(self, index: int) -> bool:
        return index in self._reasons

    def __len__(self) -> int:
        return len(self._reasons)

    def reason(self, index: int) -> str:
        """Why a prompt is refused."""
        return self._reasons[index]


RAISED = Refusals()
