"""Keeps the ranks of a tensor-parallel group in step: all get the answer or the error of one.

Every rank makes the same calls in the same order. Only the first has an engine; the others wait for
it, so a rank that failed without a word would be answered, at its next call, with the rows of this
one.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from _inf.errors import EngineDeadError, InferenceError, error_text

T = TypeVar("T")


class Ranks:
    """The group of this process; without arguments, this process alone."""

    def __init__(
        self, group: dist.ProcessGroup | None = None, ranks: Sequence[int] = (0,), rank: int = 0
    ) -> None:
        self._group, self._ranks, self.rank = group, ranks, rank
        self.size, self.first = len(ranks), rank == ranks[0]
        # Held during a call, because two at once would take each other's answers.
        self.turn = threading.RLock() if self.size > 1 else contextlib.nullcontext()

    def shared(self, call: str, work: Callable[[], T]) -> T:
        """Do `work` on the first rank; return its value, or raise its error, on every rank."""
        if self.size == 1:
            return work()
        value, failure = None, None
        with self.turn:
            try:
                value = work() if self.first else None
            except BaseException as error:
                failure = error
            shared: T = self.from_first_rank(call, value, failure)
        return shared

    def from_first_rank(self, call: str, value: object, failure: BaseException | None) -> Any:
        """Send the first rank's value or failure to every rank of several. call: what this rank is
        doing."""
        theirs: str | None = call
        error = None
        sent: list[bytes | None] = [None]
        if self.first:
            sent[0], failure = _message(call, value, failure)
        with _meeting(failure):
            dist.broadcast_object_list(sent, src=self._ranks[0], group=self._group)
        if not self.first:
            theirs, value, error = pickle.loads(sent[0]) if sent[0] else (None, None, None)
        if failure is not None:
            raise failure
        if theirs != call:
            raise InferenceError(
                f"Rank {self.rank} made another call than the first rank of its tensor-parallel "
                "group: all ranks must make the same calls in the same order, on one thread."
            )
        if error is not None:
            raise error
        return value

    def gathered(self, value: T) -> list[T]:
        """The value of each rank."""
        values = [value] * self.size
        if self.size > 1:
            dist.all_gather_object(values, value, group=self._group)
        return values

    def agree(self, failure: BaseException | None) -> None:
        """Raise on every rank if one has failed; its own failure where it has one."""
        failures: list[InferenceError | None] = [None] * self.size
        if self.size > 1:
            with _meeting(failure):
                dist.all_gather_object(failures, _for_others(failure), group=self._group)
        if failure := failure or next(filter(None, failures), None):
            raise failure

    def agreed(self, work: Callable[[], T]) -> T:
        """Do `work` on every rank; raise on all of them if it fails on one."""
        try:
            value = work()
        except BaseException as failure:
            self.agree(failure)
            raise
        self.agree(None)
        return value


@contextlib.contextmanager
def _meeting(failure: BaseException | None) -> Iterator[None]:
    """Raise this rank's failure, or that another is gone, if the ranks cannot meet."""
    try:
        yield
    except (RuntimeError, ValueError) as lost:  # Gloo's, and torch's after `shutdown`
        raise failure or EngineDeadError(
            f"A rank of this tensor-parallel group has ended: {error_text(lost)}."
        ) from lost


ALONE = Ranks()


def _message(
    call: str, value: object, failure: BaseException | None
) -> tuple[bytes, BaseException | None]:
    """Pickle what the first rank sends, before another rank waits for it; also return its failure,
    which is a new one if `value` cannot be pickled."""
    try:
        return pickle.dumps((call, value, _for_others(failure))), failure
    except Exception as error:  # such as a lock in the `extra_fields` of an agent loop
        failure = InferenceError(
            f"The rows cannot be sent to the other ranks of this tensor-parallel group: "
            f"{error_text(error)}. Return what can be pickled."
        )
        return pickle.dumps((call, None, failure)), failure


def _for_others(failure: BaseException | None) -> InferenceError | None:
    if failure is None:
        return None
    if isinstance(failure, InferenceError):
        return failure
    return InferenceError(
        f"Another rank of this tensor-parallel group failed: {error_text(failure)}."
    )
