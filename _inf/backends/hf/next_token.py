"""Chooses each row's next token from its logits, and decides whether the row ends with it.

The adjustments have the order and the meaning that they have on the backend `verl`.
"""

from __future__ import annotations

import dataclasses
import math
from asyncio import Future
from collections.abc import Callable, Hashable, Sequence

import torch

from _inf.backends import draws
from _inf.backends.hf.translation import inputs_of, translation_of
from _inf.backends.rows import check_finite
from _inf.parts.continued import Continued
from _inf.types import ModelInfo, Put, Request, RequestOutput, SamplingParams, Tokenizer


@dataclasses.dataclass(eq=False)
class Row:
    """A request on its way. call: the same object for all rows of a call. version: of the weights
    in use. put: gets the output so far at each token but the last. done: its end. prompt: equal for
    rows that can share a prompt's keys and values. shift: how far the positions of its new tokens
    are from their numbers in the row."""

    request: Request
    call: object
    version: Callable[[], int]
    model: ModelInfo
    done: Future[RequestOutput]
    put: Put | None = None
    prompt: Hashable = None
    cached_tokens: int = 0
    shift: int = 0
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    weight_versions: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        if (continued := self.params.of(Continued)) is not None:
            so_far = continued.so_far
            self.token_ids, self.logprobs = list(so_far.token_ids), list(so_far.logprobs)
            self.weight_versions = list(so_far.weight_versions)
        self.parts = [
            translation_of(part)(part, self.request, self.model) for part in self.params.parts
        ]

    def inputs(self, tokens: int) -> dict[str, torch.Tensor]:
        """What the model gets besides so many of its ids."""
        return inputs_of(self.params.parts, tokens)

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def ids(self) -> list[int]:
        """Of its prompt, and of its answer so far."""
        return self.request.token_ids + self.token_ids

    @property
    def most_tokens(self) -> int:
        """How many tokens, prompt and answer, it may come to."""
        return len(self.request.token_ids) + self.params.max_tokens

    def output(self, reason: str | None, matched: int | str | None = None) -> RequestOutput:
        """The output so far; reason: why it ended, or None."""
        whole = reason is not None
        records = [part.record(self.token_ids, whole=whole) for part in self.parts]
        return RequestOutput(
            token_ids=list(self.token_ids),
            logprobs=list(self.logprobs),
            finish_reason=reason,
            matched_stop=matched,
            prompt_tokens=len(self.request.token_ids),
            completion_tokens=len(self.token_ids),
            cached_tokens=self.cached_tokens,
            weight_versions=list(self.weight_versions) or [(self.version(), 0)],
            parts=tuple(record for record in records if record is not None),
        )

    def add(self, token: int, logprob: float) -> None:
        version = self.version()
        if not self.weight_versions or self.weight_versions[-1][0] != version:
            self.weight_versions.append((version, len(self.token_ids)))
        self.token_ids.append(token)
        self.logprobs.append(logprob)

    def abort(self) -> None:
        """End it with what it has."""
        if not self.done.done():
            self.done.set_result(self.output("abort"))


class Chooser:
    """Chooses tokens. Rows without a seed draw from a generator of its own, not PyTorch's."""

    def __init__(self, model: ModelInfo, device: torch.device) -> None:
        self._tokenizer: Tokenizer = model.tokenizer
        self._eos = model.eos_token_ids
        self._generator = torch.Generator(device)
        self._generator.seed()

    def choose(
        self, logits: torch.Tensor, rows: Sequence[Row], given: Sequence[int] | None = None
    ) -> None:
        """Add a token to each row, the given one if there are any; a row that ends with it, or
        fails, is done. logits: rows x vocabulary, float32, changed in place."""
        for scores, row in zip(logits, rows, strict=True):
            self.adjust(scores, row)
        temperatures = _column([row.params.temperature or 1.0 for row in rows], logits)
        logprobs = torch.log_softmax(logits / temperatures, dim=-1)
        tokens = logprobs.argmax(-1) if given is None else torch.tensor(given, device=logits.device)
        drawn = [index for index, row in enumerate(rows) if not row.params.greedy]
        if drawn:
            tokens[drawn] = self._drawn(logprobs[drawn].exp(), [rows[index] for index in drawn])
        chosen = logprobs.gather(1, tokens[:, None])[:, 0].tolist()
        for index, (row, token, logprob) in enumerate(
            zip(rows, tokens.tolist(), chosen, strict=True)
        ):
            try:
                self._add(row, token, logprob, logprobs[index])
            except Exception as failure:  # of its grammar or its numbers: other rows continue
                if not row.done.done():
                    row.done.set_exception(failure)

    def _drawn(self, probs: torch.Tensor, rows: Sequence[Row]) -> torch.Tensor:
        params = [row.params for row in rows]
        if any(each.filtered for each in params):
            width = probs.shape[1]
            top_ks = [each.top_k if each.top_k > 0 else width for each in params]
            filters = [top_ks, [each.top_p for each in params], [each.min_p for each in params]]
            probs = draws.filtered(probs, *(_column(values, probs) for values in filters))
        for index, row in enumerate(rows):
            for part in row.parts:
                part.drawing(probs[index])
        places = [len(row.token_ids) for row in rows]
        return draws.draw_rows(probs, [each.seed for each in params], places, self._generator)

    def _add(self, row: Row, token: int, logprob: float, logprobs: torch.Tensor) -> None:
        row.add(token, logprob)
        if not math.isfinite(logprob):
            check_finite(row.logprobs, row.request.row, parts=row.params.parts)
        for part in row.parts:
            part.chosen(token, logprob, logprobs)
        reason, matched = self.end(row)
        if reason is None:
            if row.put is not None:
                row.put(row.output(None))
        elif not row.done.done():
            row.done.set_result(row.output(reason, matched))

    def end(self, row: Row) -> tuple[str | None, int | str | None]:
        """Why the row ends with its last token, or None, and the token or the stop string that
        ended it."""
        params, count, token = row.params, len(row.token_ids), row.token_ids[-1]
        if token in params.stop_token_ids or any(token in part.ends for part in row.parts):
            return "stop", token
        if count >= params.max_tokens:
            return "length", None
        if params.stop and count >= params.min_tokens:
            # From the token that fulfils min_tokens on: earlier stop strings do not count.
            longest = max(len(stop.encode()) for stop in params.stop)
            start = max(count - longest - 1, params.min_tokens - 1, 0)
            text = self._tokenizer.decode(row.token_ids[start:])
            for stop in params.stop:
                if stop in text:
                    return "stop", stop
        reasons = (part.ended(row.token_ids) for part in row.parts if count >= params.min_tokens)
        return next(filter(None, reasons), None), None

    def adjust(self, scores: torch.Tensor, row: Row) -> None:
        params, ids = row.params, row.token_ids
        for part in row.parts:
            part.adjust(scores, ids)
        if len(ids) < params.min_tokens:
            longer = scores.clone()
            longer[list({*params.stop_token_ids, *self._eos})] = -math.inf
            # Where nothing is left, a grammar has no other token.
            if not any(part.masks for part in row.parts) or longer.max() > -math.inf:
                scores.copy_(longer)
        for part in row.parts:
            if (token := part.forced(ids)) is not None:
                scores.fill_(-math.inf)
                scores[token] = 0.0


def top_tokens(logprobs: torch.Tensor, count: int) -> list[list[tuple[int, float]]]:
    values, tokens = logprobs.topk(count)
    pairs = zip(tokens.tolist(), values.tolist(), strict=True)
    return [list(zip(*each, strict=True)) for each in pairs]


def _column(values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
    return torch.tensor(values, device=like.device)[:, None]
