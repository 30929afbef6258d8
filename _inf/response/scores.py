"""Scores given responses: how likely the model finds them.

In: prompts and responses in the caller's forms; the backend's outputs. Out: the sequences to send,
and a `Score` per sequence. Knows nothing of engines.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from _inf.errors import PromptError
from _inf.request.prompts import normalize
from _inf.request.template import Template
from _inf.request.tokenize import tokenize, tokenize_responses
from _inf.types import ModelInfo, RequestOutput


@dataclasses.dataclass(frozen=True)
class Score:
    """How likely the model finds one response after its prompt.

    token_ids: the response's ids.
    logprobs: one float per token, the natural log of softmax(logits).
    is_greedy: whether every token is the likeliest at its position, or as likely as the likeliest;
        True for a response without tokens.
    """

    token_ids: list[int]
    logprobs: list[float]
    is_greedy: bool


def scored_sequences(
    prompts: object, responses: object, template: Template | None, model: ModelInfo
) -> list[tuple[list[int], int]]:
    """Return each prompt's ids joined with its response's, and where the response begins.

    Only their sum has a limit; if prompts are cut, `generate`'s prompt limit applies too.
    """
    limits = model.limits
    bounds = limits if limits.truncate else dataclasses.replace(limits, prompt=sys.maxsize)
    sent = [prompt.token_ids for prompt in tokenize(normalize(prompts), template, bounds)]
    answers = tokenize_responses(responses, len(sent), model.tokenizer, limits)
    for index, (ids, answer) in enumerate(zip(sent, answers, strict=True)):
        if len(ids) + len(answer) > limits.total:
            raise PromptError(
                f"prompt {index} has {len(ids)} tokens; with the {len(answer)} of its response "
                f"that is {len(ids) + len(answer)}, above the limit of {limits.total} "
                "(rollout.max_model_len). Shorten one of the two, or raise the limit."
            )
    return [(ids + answer, len(ids)) for ids, answer in zip(sent, answers, strict=True)]


def scores(
    sequences: Sequence[tuple[list[int], int]], outputs: Sequence[RequestOutput]
) -> list[Score]:
    """Build the scores from outputs that begin with the token before the response."""
    rows = []
    for (ids, start), output in zip(sequences, outputs, strict=True):
        # None stands only for the first token of a prompt.
        known = [value for value in output.prompt_logprobs[1:] if value is not None]
        likeliest = [value for value in output.likeliest_logprobs[1:] if value is not None]
        greedy = all(own >= best for own, best in zip(known, likeliest, strict=True))
        rows.append(Score(ids[start:], known, greedy))
    return rows
