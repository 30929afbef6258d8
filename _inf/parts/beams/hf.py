"""Finds answers by the beam search of Transformers' own `generate`, on a separate thread. A beam's
score is Transformers': the sum of its log probs divided by its length.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

from _inf.backends.hf import translation
from _inf.backends.hf.forward import Forward, left_padded
from _inf.backends.hf.next_token import Chooser, Row
from _inf.backends.hf.translation import Inputs
from _inf.errors import ConfigError, at_fault
from _inf.parts.adapters import adapter_of
from _inf.parts.beams import Beams
from _inf.types import Request


class Translation(translation.Translation[Beams]):
    """Nothing for one token: the beams of a call are searched together."""


def _beams(row: Row) -> Beams:
    part = row.params.of(Beams)
    assert part is not None
    return part


def _inputs(row: Row) -> Inputs:
    """What the model gets besides the prompt's ids."""
    return row.inputs(len(row.request.token_ids))


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Searches with a model. most_tokens: of all beams that are searched at once."""

    forward: Forward
    chooser: Chooser
    most_tokens: int
    vocabulary: int

    @at_fault(key="num_beams")
    def check(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if (part := request.params.of(Beams)) is None:
                continue
            beams = part.num_beams
            tokens = len(request.token_ids) + request.params.max_tokens
            if not self.forward.cached:
                raise ConfigError(
                    "num_beams: beams need a model that keeps keys and values for any length; "
                    "this one is computed from the row's beginning at each token."
                )
            if beams * tokens > self.most_tokens:
                raise ConfigError(
                    f"num_beams: {beams} beams of {tokens} tokens, prompt and max_tokens, are more "
                    f"than the {self.most_tokens} tokens that fit; take fewer beams, or a smaller "
                    "max_tokens."
                )

    async def answers(self, rows: Sequence[Row]) -> list[list[int]]:
        """Return each row's tokens; cancelling this ends the search at its next token."""
        cancelled = threading.Event()
        try:
            return await asyncio.to_thread(self._answers, rows, cancelled)
        finally:
            cancelled.set()

    def _answers(self, rows: Sequence[Row], cancelled: threading.Event) -> list[list[int]]:
        """Search rows with equal parameters together, in groups of similar lengths."""
        kinds: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            others = [part for part in row.params.parts if not isinstance(part, Beams)]
            kind = repr((dataclasses.replace(row.params, parts=()), others, _beams(row).num_beams))
            kinds[kind][repr(row.request.token_ids)].append(row)
        found: dict[Row, list[int]] = {}
        for prompts in kinds.values():
            samples = list(prompts.values())  # the rows of each prompt
            lengths = [first.most_tokens for first, *_ in samples]
            most = self.most_tokens // _beams(samples[0][0]).num_beams
            adapters = [adapter_of(first.params) for first, *_ in samples]
            groups = self.forward.grouped(lengths, most, adapters)
            if _inputs(samples[0][0]):  # they are of one prompt's ids
                groups = [[number] for number in range(len(samples))]
            for group in groups:
                if cancelled.is_set():
                    return []
                members = [samples[number] for number in group]
                count = 1 + max(_beams(row).beam for rows in members for row in rows)
                best = self._search([first for first, *_ in members], count, cancelled)
                for same, beams in zip(members, best, strict=True):
                    found.update((row, beams[_beams(row).beam]) for row in same)
        return [found[row] for row in rows]

    def _config(self, row: Row, count: int) -> GenerationConfig:
        return GenerationConfig(
            do_sample=False,
            num_beams=_beams(row).num_beams,
            num_return_sequences=count,
            max_new_tokens=row.params.max_tokens,
            # Without one Transformers would take the model's; no token has this id.
            eos_token_id=list(row.params.stop_token_ids) or [self.vocabulary],
            pad_token_id=self.vocabulary,
        )

    def _search(
        self, rows: Sequence[Row], count: int, cancelled: threading.Event
    ) -> list[list[list[int]]]:
        """Return the `count` best beams of each row's prompt; all have equal parameters."""
        params = rows[0].params
        prompts = [row.request.token_ids for row in rows]
        mask = left_padded([[1] * len(ids) for ids in prompts])
        width = mask.shape[1]

        def as_rows(sequences: torch.Tensor) -> Iterator[Row]:
            share = len(sequences) // len(rows)
            for index, ids in enumerate(sequences[:, width:].tolist()):
                yield dataclasses.replace(rows[index // share], token_ids=ids)

        def adjusted(sequences: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            for row_scores, row in zip(scores, as_rows(sequences), strict=True):
                self.chooser.adjust(row_scores, row)
            return scores

        def ended(sequences: torch.Tensor, scores: object) -> torch.Tensor:
            ends = [self.chooser.end(row)[0] is not None for row in as_rows(sequences)]
            return torch.tensor(ends, device=sequences.device) | cancelled.is_set()

        with self.forward.adapters.using(adapter_of(params)):
            found = self.forward.model.generate(
                left_padded(prompts).to(self.forward.device),
                attention_mask=mask.to(self.forward.device),
                generation_config=self._config(rows[0], count),
                logits_processor=LogitsProcessorList([adjusted]),
                stopping_criteria=StoppingCriteriaList([ended]),
                **{name: self.forward.moved(value) for name, value in _inputs(rows[0]).items()},
            )
        # Behind a beam's end is padding.
        beams = [[i for i in row.token_ids if i != self.vocabulary] for row in as_rows(found)]
        return [beams[start : start + count] for start in range(0, len(beams), count)]
