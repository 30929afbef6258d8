"""Scores given responses: how likely the model finds each one after its prompt."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from _inf.errors import PromptError
from _inf.parts.prompt_logprobs import PromptScores
from _inf.request.prompts import normalize
from _inf.request.template import Template
from _inf.request.tokenize import no_room, tokenize, tokenize_responses
from _inf.request.values import count
from _inf.types import ModelInfo, Prompt, RequestOutput, Scored

if TYPE_CHECKING:
    from _inf.parts.part import Readers


@dataclasses.dataclass(frozen=True)
class Score:
    """How likely the model finds one response after its prompt.

    token_ids: the response's ids.
    logprobs: one float per token, the natural log of softmax(logits).
    is_greedy: whether every token is the likeliest at its position, or ties with it; True for an
        empty response.
    top_logprobs: only with `top_logprobs=k`: a dict per token, from the k likeliest ids at its
        position and the given id to their log probs, the likeliest first.
    """

    token_ids: list[int]
    logprobs: list[float]
    is_greedy: bool
    top_logprobs: list[dict[int, float]] | None = None


def scored_sequences(
    prompts: object,
    responses: object,
    template: Template | None,
    model: ModelInfo,
    readers: Readers,
) -> list[Scored]:
    """Return the ids of each prompt with its response, and the position where the response begins.

    Only the sum of both is limited; if prompts are cut, `generate`'s prompt limit applies too.
    readers: as for `normalize`.
    """
    limits = model.limits
    bounds = limits if limits.truncate else dataclasses.replace(limits, prompt=sys.maxsize)
    forms = normalize(prompts, readers)
    for index, form in enumerate(forms):
        if isinstance(form, Prompt) and form.continues:
            raise PromptError(
                f"prompt {index} is a row, which only generate() continues.", index=index
            )
    sent = tokenize(forms, template, bounds)
    answers = tokenize_responses(responses, len(sent), model.tokenizer, limits)
    scored = []
    for index, (prompt, answer) in enumerate(zip(sent, answers, strict=True)):
        ids = prompt.token_ids
        if len(ids) + len(answer) > limits.total:
            what = f"the {len(answer)} of its response"
            remedy = "Shorten one of the two, or raise the limit."
            raise no_room(index, len(ids), len(answer), limits, what, remedy)
        scored.append(Scored(ids + answer, len(ids), prompt.parts))
    return scored


def likeliest_tokens(top_logprobs: int | None, vocabulary: int) -> int:
    """Return how many of the likeliest tokens to ask for; one is enough for `is_greedy`."""
    return 1 if top_logprobs is None else count("top_logprobs", top_logprobs, most=vocabulary)


def scores(
    sequences: Sequence[Scored], outputs: Sequence[RequestOutput], *, tops: bool
) -> list[Score]:
    """Build the scores from outputs that begin with the token before the response. tops: whether
    the scores have `top_logprobs`."""
    rows = []
    for sequence, output in zip(sequences, outputs, strict=True):
        scored, answer = output.of(PromptScores), sequence.ids[sequence.start :]
        assert scored is not None
        logprobs, likeliest = scored.of_tokens(answer)
        pairs = zip(logprobs, likeliest, strict=True)
        greedy = all(logprob >= max(top.values()) for logprob, top in pairs)
        rows.append(Score(answer, logprobs, greedy, likeliest if tops else None))
    return rows
