"""Scores the prompts of a call before its rows are answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from _inf.backends.hf import translation
from _inf.parts.adapters import adapter_of
from _inf.parts.part import Part
from _inf.parts.prompt_logprobs import PromptLogprobs, PromptScores
from _inf.types import Request, RequestOutput, Scored

# Scores sequences with so many of the likeliest tokens, and adapters.
Score = Callable[[Sequence[Scored], int, Sequence[str | None]], Awaitable[list[RequestOutput]]]


class Translation(translation.Translation[PromptLogprobs]):
    """Nothing while the row is answered."""


async def scores_of_prompts(requests: Sequence[Request], score: Score) -> dict[int, PromptScores]:
    """The log probs of the prompts of those requests that ask for them, by their places."""
    asked = {
        index: (tuple(request.token_ids), _content(request), adapter_of(request.params))
        for index, request in enumerate(requests)
        if request.params.of(PromptLogprobs)
    }
    parts = [request.params.of(PromptLogprobs) for request in requests]
    prompts = [*dict.fromkeys(asked.values())]  # equal ones once
    likeliest = max((part.tops for part in parts if part), default=0)
    sequences = [Scored([*ids], 1, content) for ids, content, _ in prompts]
    outputs = await score(sequences, likeliest, [adapter for *_, adapter in prompts])
    scored = dict(zip(prompts, outputs, strict=True))
    scores = {index: scored[prompt].of(PromptScores) for index, prompt in asked.items()}
    return {index: each for index, each in scores.items() if each is not None}


def _content(request: Request) -> tuple[Part, ...]:
    """What the prompt has besides text."""
    return tuple(part for part in request.params.parts if part.reads)
