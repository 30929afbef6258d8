"""Computes each prompt once, however many rows have it, and whenever these begin."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Collection, Container, Hashable, Iterator, Sequence

import torch
from transformers import DynamicCache

from _inf.backends.hf.forward import Forward, joined, row_of, selected
from _inf.backends.hf.next_token import Row
from _inf.parts.adapters import adapter_of


@dataclasses.dataclass
class Computed:
    """logits: of the token that follows a prompt, 1 x vocabulary. cache: of its tokens, one row.
    shift: its rows'."""

    logits: torch.Tensor
    cache: DynamicCache
    shift: int = 0


class Prompts:
    """The prompts of rows that wait. kept: those that were computed already, until no row waits for
    them, or the weights change."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self.kept: dict[Hashable, Computed] = {}

    def name(self, row: Row) -> Hashable:
        """Equal for rows that can share a prompt's keys and values."""
        if not self._forward.cached:
            return row
        keys = [part.prompt_key for part in row.parts if part.prompt_key is not None]
        return adapter_of(row.params), array("q", row.ids).tobytes(), *keys

    def keep(self, wanted: Collection[Hashable]) -> None:
        """Free the others."""
        self.kept = {prompt: each for prompt, each in self.kept.items() if prompt in wanted}

    def new_tokens(self, row: Row, others: Container[Hashable]) -> int:
        """How many tokens of its prompt are computed if the row begins beside these prompts."""
        known = row.prompt in self.kept or row.prompt in others
        return 0 if known else len(row.ids)

    def grouped(self, rows: Sequence[Row], most_tokens: int) -> Iterator[list[Row]]:
        """Yield rows whose prompts are computed together: of one adapter and similar lengths."""
        rows_of: dict[Hashable, list[Row]] = {}
        for row in rows:
            rows_of.setdefault(row.prompt, []).append(row)
        several = []
        for equal in rows_of.values():
            if equal[0].inputs(len(equal[0].ids)):  # they are of its ids alone
                yield equal
            else:
                several.append(equal)
        lengths = [len(equal[0].ids) for equal in several]
        adapters = [adapter_of(equal[0].params) for equal in several]
        for group in self._forward.grouped(lengths, most_tokens, adapters):
            yield [row for index in group for row in several[index]]

    def compute(
        self, rows: Sequence[Row], wanted: Collection[Hashable]
    ) -> tuple[torch.Tensor, DynamicCache | None]:
        """Return the logits of the rows' first tokens, rows x vocabulary, and the cache of their
        prompts. rows: a group of `grouped`. wanted: prompts that are kept for other rows."""
        firsts: dict[Hashable, Row] = {}
        for row in rows:
            if row.prompt in firsts or row.prompt in self.kept:
                row.cached_tokens = row.cached_tokens or len(row.ids)
            firsts.setdefault(row.prompt, row)
            if row.prompt in self.kept:
                row.shift = self.kept[row.prompt].shift
        kept = {prompt: self.kept[prompt] for prompt in firsts if prompt in self.kept}
        parts = [(each.logits, row_of(each.cache)) for each in kept.values()]
        new = {prompt: row for prompt, row in firsts.items() if prompt not in kept}
        if new:
            parts.append(self._compute_new(new, wanted))
            for row in rows:
                if row.prompt in new:
                    row.shift = new[row.prompt].shift
        logits = torch.cat([logits for logits, _ in parts])
        caches = [cache for _, cache in parts if cache is not None]
        place = {prompt: index for index, prompt in enumerate([*kept, *new])}
        which = [place[row.prompt] for row in rows]
        if not caches:
            return logits[which], None
        cache = joined(caches)
        if which != [*range(len(place))]:
            selected(cache, which, cache.get_seq_length())
        return logits[which], cache

    def _compute_new(
        self, firsts: dict[Hashable, Row], wanted: Collection[Hashable]
    ) -> tuple[torch.Tensor, DynamicCache | None]:
        """Compute prompts, by each one's first row."""
        cache = DynamicCache() if self._forward.cached else None
        rows = [*firsts.values()]
        ids = [row.ids for row in rows]
        adapter, inputs = adapter_of(rows[0].params), rows[0].inputs(len(ids[0]))
        if inputs:
            self._forward.check_inputs(ids[0], rows[0].inputs)
        logits = self._forward(ids, cache, adapter=adapter, inputs=inputs)[:, -1]
        if inputs:
            rows[0].shift = self._forward.shift
        for index, prompt in enumerate(firsts):
            if cache is not None and prompt in wanted:
                kept = row_of(cache, index, len(ids[index]))
                shift = rows[index].shift
                self.kept[prompt] = Computed(logits[index : index + 1].clone(), kept, shift)
        return logits, cache
