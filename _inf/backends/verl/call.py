"""What verl does not pass on of one call, between the caller's thread and the engine's."""

from __future__ import annotations

import contextvars
import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

from _inf.backends.verl.tensor_parallel import Ranks
from _inf.runtime.host import Host
from _inf.types import CancelToken, RequestOutput


@dataclasses.dataclass
class Call:
    """Sampling parameters per row in (None: verl's own, for all rows), outputs per row out.

    ranks: those that make this call too and get its answer; None if no other does. asked: what
    they must have asked as well. failure: of this rank, which is raised where all of them meet.
    """

    host: Host
    cancel: CancelToken
    sampling_params: list[dict[str, Any]] | None = None
    report: Callable[[int, int], None] | None = None
    rows_only: bool = False  # verl need not make tensors of the answers
    ranks: Ranks | None = None
    asked: str = ""
    failure: BaseException | None = None
    rows: list[RequestOutput] = dataclasses.field(default_factory=list)
    name: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)

    def rid(self, row: int | str) -> str:
        """A request's id; the scheduler recognizes a call's rows by the part before the dash."""
        return f"{self.name}-{row}"


current_call: contextvars.ContextVar[Call] = contextvars.ContextVar("inf_call")
