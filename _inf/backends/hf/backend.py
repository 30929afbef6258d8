"""Implements `Backend` with a Transformers model.

Everything is computed on the event loop of the engine's own thread, between two tokens of which
calls begin, end and are cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from _inf.backends import new_weights
from _inf.backends.base import Adapting, Logits, Scoring, Updating
from _inf.backends.hf import HF_MODE
from _inf.backends.hf.decoding import Decoder, failing
from _inf.backends.hf.forward import Forward
from _inf.backends.hf.next_token import Row, top_tokens
from _inf.backends.hf.translation import inputs_of, translation_of
from _inf.backends.pausing import PausingRows
from _inf.backends.rows import check_finite, row_or_failure
from _inf.errors import error_text
from _inf.parts.adapters import adapter_of
from _inf.parts.beams import Beams
from _inf.parts.beams.hf import BeamSearch
from _inf.parts.prompt_logprobs import PromptScores
from _inf.parts.prompt_logprobs.hf import scores_of_prompts
from _inf.runtime.calls import CancelToken, current_call
from _inf.runtime.host import Host
from _inf.runtime.side_by_side import run_rows
from _inf.types import ModelInfo, Put, Report, Request, RequestOutput, Scored

T = TypeVar("T")

SCORED_TOKENS = 1024  # whose logits, each as wide as the vocabulary, are in memory at once


class HfBackend(PausingRows, Scoring, Logits, Updating, Adapting):
    """A Transformers model in this process."""

    name = "hf"

    def __init__(self, forward: Forward, decoder: Decoder, host: Host, model: ModelInfo) -> None:
        super().__init__(host, model, HF_MODE.supports)
        self.loaded = forward.adapters
        self.forward, self.decoder, self.weight_version = forward, decoder, 0
        self.on_cpu = forward.device.type == "cpu"
        vocabulary = model.limits.vocabulary
        self._searches: set[asyncio.Future[None]] = set()  # of beams
        self._beams = BeamSearch(forward, decoder.chooser, decoder.most_tokens, vocabulary)

    def generate(
        self, requests: Sequence[Request], cancel: CancelToken, report: Report | None
    ) -> list[RequestOutput]:
        for request in requests:
            for part in request.params.parts:
                translation_of(part).prepare(part, self.model)
        if any(request.params.of(Beams) for request in requests):
            self._beams.check(requests)
        return self.await_rows(lambda: self._generate(requests, report), cancel)

    async def _generate(
        self, requests: Sequence[Request], report: Report | None
    ) -> list[RequestOutput]:
        # By the weights with which the call begins.
        scores = await scores_of_prompts(requests, self._score)
        rows = [self._row(request) for request in requests]
        searching = asyncio.ensure_future(self._search([r for r in rows if r.params.of(Beams)]))
        self._searches.add(searching)
        searching.add_done_callback(self._searches.discard)
        try:
            ends = (row_or_failure(row.request, row.done) for row in rows)
            outputs = await run_rows(ends, report, lambda: sum(len(row.token_ids) for row in rows))
        finally:
            searching.cancel()
            for row in rows:
                row.done.cancel()
        for index, scored in scores.items():
            if outputs[index].error is None:
                whole = _with_scores(outputs[index], scored, requests[index].row)
                outputs[index] = await row_or_failure(requests[index], whole)
        return outputs

    def _row(self, request: Request, put: Put | None = None) -> Row:
        end: asyncio.Future[RequestOutput] = asyncio.get_running_loop().create_future()
        version = partial(self._version, adapter_of(request.params))
        row = Row(request, current_call.get(), version, self.model, end, put)
        if not request.params.of(Beams):
            self.decoder.add(row)
        return row

    async def _search(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        with failing(rows):
            answers = await self._beams.answers(rows)
            both = [
                Scored(row.request.token_ids + answer, len(row.request.token_ids), row.params.parts)
                for row, answer in zip(rows, answers, strict=True)
            ]
            adapters = [adapter_of(row.params) for row in rows]
            async for number, logits in self._logits(both, adapters):
                for scores, token in zip(logits, answers[number], strict=True):
                    self.decoder.chooser.choose(scores[None], [rows[number]], [token])

    async def turn(self, request: Request, put: Put | None = None) -> RequestOutput:
        return await self._row(request, put).done

    def score(
        self,
        sequences: Sequence[Scored],
        cancel: CancelToken,
        likeliest: int = 1,
        adapter: str | None = None,
    ) -> list[RequestOutput]:
        adapters = [adapter] * len(sequences)
        outputs = self.host.run(self._score(sequences, likeliest, adapters), cancel)
        for number, output in enumerate(outputs):
            scores = output.of(PromptScores)
            check_finite(scores.logprobs if scores else [], number)
        return outputs

    async def _score(
        self, sequences: Sequence[Scored], likeliest: int, adapters: Sequence[str | None]
    ) -> list[RequestOutput]:
        scored: dict[int, RequestOutput] = {}
        async for number, logits in self._logits(sequences, adapters):
            ids = sequences[number].ids
            table = torch.log_softmax(logits, dim=-1)
            scored_ids = ids[sequences[number].start :]
            logprobs = table[torch.arange(len(table)), scored_ids].tolist()
            scored[number] = RequestOutput(
                finish_reason="length",
                prompt_tokens=len(ids),
                weight_versions=[(self._version(adapters[number]), 0)],
                parts=(
                    PromptScores(
                        [None, *logprobs], [None, *map(dict, top_tokens(table, likeliest))]
                    ),
                ),
            )
        return [scored[number] for number in range(len(sequences))]

    def logits(
        self, sequences: Sequence[Scored], cancel: CancelToken, adapter: str | None = None
    ) -> torch.Tensor:
        async def all_logits() -> torch.Tensor:
            longest = max((len(each.ids) - each.start for each in sequences), default=0)
            shape = len(sequences), longest, self.model.limits.vocabulary
            padded = torch.full(shape, math.nan)
            async for number, logits in self._logits(sequences, [adapter] * len(sequences)):
                padded[number, : len(logits)] = logits
            return padded

        return self.host.run(all_logits(), cancel)

    async def _logits(
        self, sequences: Sequence[Scored], adapters: Sequence[str | None]
    ) -> AsyncIterator[tuple[int, torch.Tensor]]:
        """Yield each sequence's number and the logits of its tokens from its start on."""
        inputs = [inputs_of(each.parts, len(each.ids)) for each in sequences]
        alone = [[number] for number, own in enumerate(inputs) if own]  # they are of its ids alone
        texts = [number for number, own in enumerate(inputs) if not own]
        lengths = [len(sequences[number].ids) for number in texts]
        of_texts = [adapters[number] for number in texts]
        groups = self.forward.grouped(lengths, SCORED_TOKENS, of_texts)
        for group in [*alone, *([texts[place] for place in each] for each in groups)]:
            counts = [len(sequences[n].ids) - sequences[n].start for n in group]
            most, ids = max(counts) + 1, [sequences[number].ids for number in group]
            first = group[0]
            logits = self.forward(ids, keep=most, adapter=adapters[first], inputs=inputs[first])
            for place, (number, count) in enumerate(zip(group, counts, strict=True)):
                yield number, logits[place, most - 1 - count : most - 1].cpu()
            await self.decoder.between_steps()

    async def freeze(self) -> None:
        """A beam search, which runs on a thread of its own, is ended first."""
        while self._searches:
            await asyncio.wait(self._searches)
        self.decoder.going.clear()

    async def thaw(self) -> None:
        self.decoder.going.set()

    def ending(self) -> contextlib.AbstractContextManager[None]:
        return self.decoder.ending()

    def reset_prefix_cache(self) -> None:
        """Nothing: no keys and values are kept between calls."""
        self.check_alive()

    def update_weights(
        self, weights: object, version: int | None, *, keep: bool = False, recompute: bool = False
    ) -> int:
        self.check_alive()
        model, adapters = self.forward.model, self.forward.adapters
        expected = new_weights.weights_of(model, adapters.own_weights())
        tensors = new_weights.checked(weights, expected)

        async def load() -> int:
            self.decoder.forget_prompts()
            state = adapters.own_weights()
            try:
                for name, tensor in tensors:
                    state[name].detach().copy_(new_weights.whole(tensor))
            except BaseException as failure:  # some weights are new, and the others are not
                what = f"An update of the weights failed halfway with {error_text(failure)}"
                self.host.declare_dead(what)
                raise
            self.weight_version = self.weight_version + 1 if version is None else version
            adapters.count_up()
            if recompute:
                self.decoder.compute_again()
            return self.weight_version

        return self.change(load(), keep=keep)

    async def _of_adapter(self, name: str, change: Callable[[], Awaitable[T]]) -> T:
        self.decoder.forget_prompts()
        return await super()._of_adapter(name, change)

    def _version(self, adapter: str | None) -> int:
        """The version of the weights of a row with this adapter."""
        return self.weight_version if adapter is None else self.forward.adapters.of(adapter).version


async def _with_scores(
    output: RequestOutput, scores: PromptScores, row: int | None
) -> RequestOutput:
    check_finite(scores.logprobs, row)
    return dataclasses.replace(output, parts=(*output.parts, scores))
