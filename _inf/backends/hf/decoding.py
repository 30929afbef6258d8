"""Decodes rows together: they join the running batches, and leave them, between two tokens.

A batch has rows of similar lengths, so that its padding costs little; so have the new rows whose
prompts are computed together.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterator, Sequence

from transformers import DynamicCache

from _inf.backends.hf.forward import Forward, joined, selected
from _inf.backends.hf.next_token import Chooser, Row
from _inf.backends.hf.prompts import Prompts
from _inf.errors import RequestFailure, error_text
from _inf.parts.adapters import adapter_of


@dataclasses.dataclass
class Batch:
    """Rows of one adapter, or of none, that are computed together. cache: of all their tokens but
    the last one of each."""

    rows: list[Row]
    cache: DynamicCache | None

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row, the last one included."""
        return [len(row.ids) for row in self.rows]

    @property
    def adapter(self) -> str | None:
        return adapter_of(self.rows[0].params)

    def leave(self) -> None:
        """Let the rows go that are done; all of them if memory runs out."""
        kept = [index for index, row in enumerate(self.rows) if not row.done.done()]
        if len(kept) == len(self.rows):
            return
        self.rows = [self.rows[index] for index in kept]
        if self.rows and self.cache is not None:
            with failing(self.rows):
                selected(self.cache, kept, max(self.lengths) - 1)
                return
            self.rows = []

    def may_join(self, other: Batch) -> bool:
        """Whether another batch, of no shorter rows, may be computed with this one."""
        near = max(other.lengths) <= 2 * max(self.lengths) + 64
        kept = self.cache is not None and other.cache is not None
        return near and kept and self.adapter == other.adapter


@dataclasses.dataclass
class Decoder:
    """Answers rows. most_rows, most_tokens: bounds of all that run at once; most_new_tokens: prompt
    tokens that are computed before running rows get their next token."""

    forward: Forward
    chooser: Chooser
    most_rows: int
    most_tokens: int
    most_new_tokens: int

    def __post_init__(self) -> None:
        self._waiting: dict[object, deque[Row]] = {}  # by their call
        self._prompts = Prompts(self.forward)
        self._taken: list[Row] = []  # whose prompts are about to be computed
        self._batches: list[Batch] = []
        self._work = asyncio.Event()
        self._ending = False
        self.going = asyncio.Event()  # cleared, it keeps all rows between two tokens
        self.going.set()

    @contextlib.contextmanager
    def ending(self) -> Iterator[None]:
        """Within it all rows end with what they have, those that come later with nothing."""
        running = [*self._taken, *(row for batch in self._batches for row in batch.rows)]
        for row in (*running, *(row for rows in self._waiting.values() for row in rows)):
            row.abort()
        self._ending = True
        try:
            yield
        finally:
            self._ending = False

    def forget_prompts(self) -> None:
        """Compute the prompts of waiting rows again, with other weights than until now."""
        self._prompts.kept.clear()

    def compute_again(self) -> None:
        """Compute the keys and values of all running rows again: they begin again, with what they
        have."""
        for batch in reversed(self._batches):
            if batch.cache is not None:
                for row in reversed(batch.rows):
                    self._wait(row, first=True)
                batch.rows = []  # `serve` may be among its batches

    async def between_steps(self) -> None:
        """Let calls begin, end and be cancelled, and tools run."""
        await asyncio.sleep(0)
        await self.going.wait()

    def add(self, row: Row) -> None:
        """Answer a row; cancelling its `done` ends it. Called on the event loop."""
        if self._ending:
            row.abort()
            return
        self._wait(row)
        self._work.set()

    def _wait(self, row: Row, *, first: bool = False) -> None:
        row.prompt = self._prompts.name(row)
        waiting = self._waiting.setdefault(row.call, deque())
        waiting.insert(0 if first else len(waiting), row)

    async def serve(self) -> None:
        while True:
            if not self._waiting and not self._batches:
                self._work.clear()
                await self._work.wait()
            await self.going.wait()
            self._taken = self._admitted()
            wanted = {row.prompt for rows in self._waiting.values() for row in rows}
            for rows in self._prompts.grouped(self._taken, self.most_new_tokens):
                if begun := [row for row in rows if not row.done.done()]:
                    self._begin(begun, wanted)
                await self.between_steps()
            self._taken = []
            self._prompts.keep(wanted)
            for batch in self._batches:
                self._step(batch)
                await self.between_steps()
            self._regroup()

    def _admitted(self) -> list[Row]:
        """Take waiting rows while there is room; calls with the fewest running rows go first."""
        running = [row for batch in self._batches for row in batch.rows]
        counts = Counter(row.call for row in running)
        room = self.most_tokens - sum(row.most_tokens for row in running)
        taken: list[Row] = []
        prompts: set[Hashable] = set()
        new = self.most_new_tokens
        while self._waiting and len(running) + len(taken) < self.most_rows:
            call = min(self._waiting, key=counts.__getitem__)
            row = self._waiting[call][0]
            if not row.done.done():
                room, new = room - row.most_tokens, new - self._prompts.new_tokens(row, prompts)
                if (room < 0 and (running or taken)) or (new < 0 and taken):
                    break
                taken.append(row)
                prompts.add(row.prompt)
                counts[call] += 1
            self._waiting[call].popleft()
            if not self._waiting[call]:
                del self._waiting[call]
        return taken

    def _begin(self, rows: list[Row], wanted: Collection[Hashable]) -> None:
        """Compute the rows' prompts, and choose each row's first token."""
        cache = None
        with failing(rows):
            logits, cache = self._prompts.compute(rows, wanted)
            self.chooser.choose(logits, rows)
        batch = Batch(rows, cache)
        batch.leave()
        self._batches.append(batch)

    def _step(self, batch: Batch) -> None:
        batch.leave()
        rows, cache = batch.rows, batch.cache
        if not rows:
            return
        with failing(rows):
            if cache is None:
                [row] = rows
                logits = self.forward(
                    [row.ids], adapter=batch.adapter, inputs=row.inputs(len(row.ids))
                )
            else:
                last = [row.token_ids[-1:] for row in rows]
                shifts = [row.shift for row in rows]
                logits = self.forward(
                    last, cache, batch.lengths, adapter=batch.adapter, shifts=shifts
                )
            self.chooser.choose(logits[:, -1], rows)
        batch.leave()

    def _regroup(self) -> None:
        batches = sorted(
            (batch for batch in self._batches if batch.rows),
            key=lambda batch: (batch.adapter or "", max(batch.lengths)),
        )
        self._batches = []
        for batch in batches:
            if not self._batches or not self._batches[-1].may_join(batch):
                self._batches.append(batch)
                continue
            both = [self._batches.pop(), batch]
            rows = [row for each in both for row in each.rows]
            with failing(rows):
                cache = joined([each.cache for each in both if each.cache is not None])
                self._batches.append(Batch(rows, cache))


@contextlib.contextmanager
def failing(rows: Sequence[Row]) -> Iterator[None]:
    try:
        yield
    except Exception as failure:
        reason = RequestFailure(f"The engine aborted the request: {error_text(failure)}.")
        for row in rows:
            if not row.done.done():
                row.done.set_exception(reason)
