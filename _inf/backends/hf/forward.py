"""Runs a Transformers model over rows of different lengths, and keeps their keys and values.

Rows are padded on the left; a padded token is never seen by another one, and positions count from
a row's first real token.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from _inf.backends.hf.adapters import PeftAdapters
from _inf.backends.hf.translation import NO_INPUTS, Inputs
from _inf.backends.model_info import fixed_factors_length
from _inf.errors import RequestFailure, error_text

PAD = 0  # any id: it is masked; of a mask: hidden
# How far a token's logits may differ by rounding alone, as a part of the largest one. In float32 it
# is some 1e-6; in half precision it may send a token to another expert.
SAME, SAME_IN_HALF = 1e-3, 0.1


class Forward:
    """A model. `cached`: whether rows can share a batch and keep their keys and values; of a model
    with a state, or whose rotary factors change with the longest row, each row is computed alone
    and from its beginning at each step. Found out once, from the model itself. bytes_per_token: of
    a token's keys and values; 0 if they are not kept. total: tokens of the longest row."""

    def __init__(self, model: Any, total: int) -> None:
        self.model, self.adapters = model, PeftAdapters(model)
        self.device: torch.device = model.device
        text = model.config.get_text_config()
        fixed = fixed_factors_length(text)
        same = fixed is None or total <= fixed
        # Their factors follow the longest row that there ever was (Transformers 4.57,
        # `dynamic_frequency_update`).
        self._dynamic = [m for m in model.modules() if "dynamic" in str(vars(m).get("rope_type"))]
        self._accepted = inspect.signature(model.forward).parameters.keys()
        may_share = same and bool(model._supports_default_dynamic_cache())
        self.bytes_per_token = self._bytes_if_shared() if may_share else 0
        self.cached = self.bytes_per_token > 0
        self.causal = self.cached or self._causal()
        self._inputs_checked = False

    def __call__(
        self,
        rows: Sequence[Sequence[int]],
        cache: DynamicCache | None = None,
        lengths: Sequence[int] = (),
        keep: int = 1,
        adapter: str | None = None,
        inputs: Inputs = NO_INPUTS,
        shifts: Sequence[int] = (),
    ) -> torch.Tensor:
        """Return the logits of the last `keep` tokens: rows x keep x vocabulary.

        rows: the new ids of each row; with `lengths`, which count a row's cached tokens too, every
        row has equally many new ids. cache: is read and gets the new keys and values.
        adapter: of all rows. inputs: what the model gets besides the ids of one row; it then places
        them itself, and `shift` says where it goes on. shifts: each row's.
        """
        new = max(map(len, rows))
        width = new + (cache.get_seq_length() if cache is not None else 0)
        known = torch.tensor(list(lengths) or [len(row) for row in rows])
        mask = (torch.arange(width)[None, :] >= width - known[:, None]).long()
        optional = {
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0)[:, -new:].to(self.device),
            "cache_position": torch.arange(width - new, width, device=self.device),
            "cache": cache,  # its name from Transformers 5.24 on
            "past_key_values": cache,
            "use_cache": cache is not None,
            "logits_to_keep": keep,
        }
        if inputs:
            del optional["position_ids"]
        elif any(shifts):
            optional["position_ids"] += torch.tensor(shifts, device=self.device)[:, None]
        for rope in self._dynamic:
            rope.max_seq_len_cached = 0  # it computes them again, for these rows
        with torch.no_grad(), self.adapters.using(adapter), self._refusal(inputs):
            output = self.model(
                input_ids=left_padded(rows).to(self.device),
                attention_mask=mask.to(self.device),
                **{name: value for name, value in optional.items() if name in self._accepted},
                **{name: self.moved(value) for name, value in inputs.items()},
            )
        logits: torch.Tensor = output.logits[:, -keep:]
        return logits.float()

    @property
    def shift(self) -> int:
        """How far the positions after the last row with inputs are from the tokens' numbers: in
        Qwen's models an image takes fewer positions than tokens."""
        deltas = getattr(self.model.base_model, "rope_deltas", None)
        return 0 if deltas is None else int(deltas)

    def check_inputs(self, ids: list[int], inputs_of: Callable[[int], Inputs]) -> None:
        """Refuse inputs, the first time that there are any, after which the next token would not
        be what it is in one pass over the whole row. inputs_of: of a row of so many tokens."""
        if self._inputs_checked or not self.cached:
            return
        cache = DynamicCache()
        self([ids], cache, inputs=inputs_of(len(ids)))
        size = len(ids) + 1
        after = self([ids[-1:]], cache, [size], shifts=[self.shift])[0, -1]
        whole = self([[*ids, ids[-1]]], inputs=inputs_of(size))[0, -1]
        if not self._same(after, whole):
            raise RequestFailure(
                f"{type(self.model).__name__} with {', '.join(inputs_of(size))} does not run with "
                "rollout.name: hf: its next token is another one than in one pass over the row."
            )
        self._inputs_checked = True

    @contextlib.contextmanager
    def _refusal(self, inputs: Inputs) -> Iterator[None]:
        """Say of a model's failure with a row with inputs, such as one whose answer has a token
        that begins an image, what it is about."""
        try:
            yield
        except (ValueError, IndexError, TypeError) as failure:
            if not inputs:
                raise
            raise RequestFailure(
                f"{type(self.model).__name__} refused a row with {', '.join(inputs)} "
                f"({error_text(failure)}); outside of them, a row may have no token that stands "
                "for an image or a video, or begins one."
            ) from failure

    def moved(self, value: torch.Tensor) -> torch.Tensor:
        dtype = self.model.dtype if value.is_floating_point() else value.dtype
        return value.to(self.device, dtype)

    def grouped(
        self, lengths: Sequence[int], most_tokens: int, adapters: Sequence[str | None]
    ) -> list[list[int]]:
        """Return row numbers in groups of one adapter and similar lengths, each at most so large
        when padded."""
        groups: list[list[int]] = []
        order = sorted(range(len(lengths)), key=lambda row: (adapters[row] or "", -lengths[row]))
        for row in order:
            longest = lengths[groups[-1][0]] if groups else 0
            same = self.cached and bool(groups) and adapters[groups[-1][0]] == adapters[row]
            similar = same and longest <= 1.25 * lengths[row] + 8
            if similar and longest * (len(groups[-1]) + 1) <= most_tokens:
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups

    def _bytes_if_shared(self) -> int:
        """The size of a token's keys and values, if a short row is what it is alone after it was
        padded in a batch with a cache, joined by a longer row and so padded again; else 0.

        No list of names: a state in place of keys and values, an index of them, a cache that the
        model does not take, a padded token that is seen, or positions that count padded tokens,
        all show here.
        """
        caches = DynamicCache(), DynamicCache()
        rows = [self._row(3), self._row(6), self._row(9)]
        before = [row[:-1] for row in rows]
        try:
            self(before[:2], caches[0])
            layers = caches[0].layers
            if not layers or any(type(layer) is not DynamicLayer for layer in layers):
                return 0
            self(before[2:], caches[1])
            cache = joined(caches)
            kept = [each for layer in cache.layers for each in (layer.keys, layer.values)]
            size: int = sum(each.nbytes // (len(rows) * each.shape[2]) for each in kept)
            together = self([row[-1:] for row in rows], cache, [*map(len, rows)])[0, -1]
        except Exception:  # each model says in its own way that it needs another cache
            return 0
        return size if self._same(together, self(rows[:1])[0, -1]) else 0

    def _causal(self) -> bool:
        """Whether a token's logits are the same whatever follows it."""
        row = self._row(6)
        last = self([row], keep=2)[0, 0]
        if self.model.dtype == torch.float32:
            return self._same(last, self([row[:-1]])[0, -1])
        # In half precision a pass over fewer tokens may be rounded otherwise.
        return self._same(last, self([[*row[:-1], row[0]]], keep=2)[0, 0])

    def _row(self, tokens: int) -> list[int]:
        """Ids of a row that no one reads."""
        vocabulary = self.model.config.get_text_config().vocab_size
        return [number % vocabulary for number in range(1, tokens + 1)]

    def _same(self, one: torch.Tensor, other: torch.Tensor) -> bool:
        within = SAME if self.model.dtype == torch.float32 else SAME_IN_HALF
        return bool((one - other).abs().max() <= within * other.abs().max())


def left_padded(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([[PAD] * (width - len(row)) + list(row) for row in rows])


def selected(cache: DynamicCache, rows: Sequence[int], width: int) -> None:
    """Keep these rows of a cache, and the last `width` tokens."""
    for layer in cache.layers:
        index = torch.tensor(rows, device=layer.keys.device)
        layer.keys = layer.keys[:, :, -width:].index_select(0, index)
        layer.values = layer.values[:, :, -width:].index_select(0, index)


def row_of(cache: DynamicCache, row: int = 0, width: int = 0) -> DynamicCache:
    """A copy of one row of a cache, and of its last `width` tokens; 0: all."""
    alone = DynamicCache()
    for number, layer in enumerate(cache.layers):
        keys, values = (each[row : row + 1, :, -width:] for each in (layer.keys, layer.values))
        alone.update(keys.clone(), values.clone(), number)
    return alone


def joined(caches: Sequence[DynamicCache]) -> DynamicCache:
    """Put the rows of all caches into the first one, padded on the left."""
    if len(caches) == 1:
        return caches[0]
    width = max(cache.get_seq_length() for cache in caches)

    def together(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat([pad(each, (0, 0, width - each.shape[2], 0)) for each in tensors])

    for layers in zip(*(cache.layers for cache in caches), strict=True):
        layers[0].keys = together([layer.keys for layer in layers])
        layers[0].values = together([layer.values for layer in layers])
    return caches[0]
