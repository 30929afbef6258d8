"""Computes each prompt once, however many rows have it, and whenever these begin."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Container, Hashable, Iterator, Sequence

import torch
from transformers import DynamicCache

from _inf.backends.hf.forward import Forward, joined, row_of, selected
from _inf.backends.hf.next_token import Row


@dataclasses.dataclass
class Computed:
    """logits: of the token that follows a prompt, 1 x vocabulary. cache: of its tokens, one row."""

    logits: torch.Tensor
    cache: DynamicCache


class Prompts:
    """The prompts of rows that wait, each of which is kept from its first row's begin to its last
    row's, or to the next change of weights."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._waiting: Counter[Hashable] = Counter()
        self._kept: dict[Hashable, Computed] = {}

    def add(self, row: Row) -> None:
        """Count a row that waits, and set its `prompt`."""
        if self._forward.cached:
            row.prompt = row.params.adapter, array("q", row.request.known_ids).tobytes()
        else:
            row.prompt = row
        self._waiting[row.prompt] += 1

    def remove(self, row: Row) -> None:
        """Count a row that begins next, or was cancelled."""
        self._waiting[row.prompt] -= 1
        if not self._waiting[row.prompt]:
            del self._waiting[row.prompt]

    def forget(self) -> None:
        """Free the prompts that no row waits for."""
        for prompt in self._kept.keys() - self._waiting.keys():
            del self._kept[prompt]

    def clear(self) -> None:
        """Free all that was computed."""
        self._kept.clear()

    def new_tokens(self, row: Row, others: Container[Hashable]) -> int:
        """How many tokens of its prompt are computed if the row begins beside these prompts."""
        known = row.prompt in self._kept or row.prompt in others
        return 0 if known else len(row.request.known_ids)

    def grouped(self, rows: Sequence[Row], most_tokens: int) -> Iterator[list[Row]]:
        """Yield rows whose prompts are computed together: of one adapter and similar lengths."""
        rows_of: dict[Hashable, list[Row]] = {}
        for row in rows:
            rows_of.setdefault(row.prompt, []).append(row)
        several = list(rows_of.values())
        lengths = [len(equal[0].request.known_ids) for equal in several]
        adapters = [equal[0].params.adapter for equal in several]
        for group in self._forward.grouped(lengths, most_tokens, adapters):
            yield [row for index in group for row in several[index]]

    def compute(self, rows: Sequence[Row]) -> tuple[torch.Tensor, DynamicCache | None]:
        """Return the logits of the rows' first tokens, rows x vocabulary, and the cache of their
        prompts. rows: a group of `grouped`."""
        firsts: dict[Hashable, Row] = {}
        for row in rows:
            if row.prompt in firsts or row.prompt in self._kept:
                row.cached_tokens = len(row.request.known_ids)
            firsts.setdefault(row.prompt, row)
        kept = {prompt: self._kept[prompt] for prompt in firsts if prompt in self._kept}
        parts = [(each.logits, row_of(each.cache)) for each in kept.values()]
        new = {prompt: row for prompt, row in firsts.items() if prompt not in kept}
        if new:
            parts.append(self._compute_new(new))
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

    def _compute_new(self, firsts: dict[Hashable, Row]) -> tuple[torch.Tensor, DynamicCache | None]:
        """Compute prompts, by each one's first row, and keep those for which others wait."""
        cache = DynamicCache() if self._forward.cached else None
        rows = [*firsts.values()]
        ids = [row.request.known_ids for row in rows]
        logits = self._forward(ids, cache, adapter=rows[0].params.adapter)[:, -1]
        for index, prompt in enumerate(firsts):
            if cache is not None and prompt in self._waiting:
                kept = row_of(cache, index, len(ids[index]))
                self._kept[prompt] = Computed(logits[index : index + 1].clone(), kept)
        return logits, cache
