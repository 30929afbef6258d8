"""Compares a running engine with itself: rows as sampled, scored again, sampled alone, and in later
turns.

Only public calls are used, and the engine is left as it was, but for its prefix cache, which
`update` empties.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from _inf.apps.check.differences import distances
from _inf.apps.check.token_rows import TokenRow, as_prompt, encoded, prompt_text
from _inf.apps.rollouts.sources import answer_fields
from _inf.errors import ConfigError
from _inf.request.keywords import FILTERS, KEYWORDS

if TYPE_CHECKING:
    from inf import InferenceEngine

SEED = 0
SECOND_TURN = "And why?"
CONVERSATIONS = 4  # of two turns
PROBES = 16  # sequences of two tokens
# At temperature 1 without filters, log probs are log(softmax(logits)), as `score` gives them.
PLAIN: dict[str, Any] = {
    "progress": False,
    "temperature": 1.0,
    **{name: KEYWORDS[name].neutral for name in FILTERS},
}


def sample_rows(
    engine: InferenceEngine, prompts: Sequence[Any], n: int, max_tokens: int
) -> tuple[list[TokenRow], list[int]]:
    """Sample `n` rows of each prompt in one call; return them and their seeds."""
    output = engine.generate(prompts, n=n, seed=SEED, max_tokens=max_tokens, tools=[], **PLAIN)
    rows = [TokenRow.of(answer_fields(answer, None)) for answer in output]
    return rows, [answer.seed for answer in output if answer.seed is not None]


def rescored(engine: InferenceEngine, rows: Sequence[TokenRow]) -> list[list[float]]:
    """Return the log probs of each response, by a prefill that may start from a cached prompt."""
    prompts = [as_prompt(row.ids[: row.start]) for row in rows]
    return engine.get_logprobs(prompts, [row.ids[row.start :] for row in rows])


def whole(engine: InferenceEngine, rows: Sequence[TokenRow]) -> list[list[float]]:
    """Return the log probs of all tokens but the first, by one prefill of the whole sequence: where
    log probs are asked for, SGLang does not read its prefix cache (0.5.9,
    `managers/schedule_batch.py`)."""
    return engine.get_logprobs([as_prompt(row.ids[:1]) for row in rows], [r.ids[1:] for r in rows])


def two_tokens(engine: InferenceEngine) -> list[TokenRow]:
    """Return sequences of two tokens, from many parts of the vocabulary. What follows the first
    token depends on it alone: neither attention nor positions play a part."""
    size = engine.model.limits.vocabulary
    ids = [(7919 * number + 11) % size for number in range(2 * PROBES)]
    return [TokenRow(list(pair), 2, [], []) for pair in zip(ids[::2], ids[1::2], strict=True)]


def invariances(
    engine: InferenceEngine, rows: Sequence[TokenRow], again: Sequence[list[float]]
) -> dict[str, float]:
    """Compare sampled rows with a prefill's scores (prefill_decode), and those that start from a
    cached prompt with those from the beginning (prefix_reuse). again: `whole` of the rows."""
    scored = np.concatenate(rescored(engine, rows))
    fresh = [values[row.start - 1 :] for values, row in zip(again, rows, strict=True)]
    return {
        **distances(np.concatenate([row.rollout for row in rows]), scored, "prefill_decode/"),
        **distances(scored, np.concatenate(fresh), "prefix_reuse/"),
    }


def alone(
    engine: InferenceEngine, rows: Sequence[TokenRow], seeds: Sequence[int]
) -> dict[str, float]:
    """Sample rows of a batch again, each by itself, and compare them up to the first token that is
    another."""
    ours: list[float] = []
    theirs: list[float] = []
    tokens = 0
    for row, seed in zip(rows, seeds, strict=True):
        answer = row.ids[row.start :]
        prompt, size = as_prompt(row.ids[: row.start]), len(answer)
        [again] = engine.generate(prompt, seed=seed, max_tokens=size, tools=[], **PLAIN)
        both = zip(answer, again.token_ids or [], strict=False)
        same = next((place for place, (a, b) in enumerate(both) if a != b), len(answer))
        ours += row.rollout[:same]
        theirs += (again.logprobs or [])[:same]
        tokens += len(answer)
    share = {"alone_in_batch/same_tokens": len(ours) / tokens}
    return {**distances(ours, theirs, "alone_in_batch/"), **share} if ours else share


def conversations(
    engine: InferenceEngine, rows: Sequence[TokenRow], max_tokens: int
) -> tuple[list[TokenRow], str]:
    """Return rows of two turns, with a second user message that is written here, and how they were
    made."""
    limits, tokenizer = engine.model.limits, engine.tokenizer
    glue = encoded(tokenizer, prompt_text(tokenizer, [{"role": "user", "content": SECOND_TURN}]))
    longest = min(limits.prompt, limits.total - max_tokens) - len(glue)
    first = [row for row in rows if row.rollout and len(row.ids) <= longest][:CONVERSATIONS]
    if not first:
        return [], "not compared: a second turn does not fit into rollout.prompt_length"
    prompts = [as_prompt(row.ids + glue) for row in first]
    second, _ = sample_rows(engine, prompts, 1, max_tokens)
    return [_joined(*both) for both in zip(first, second, strict=True)], (
        "scripted: a second user message after the first answer"
    )


def _joined(first: TokenRow, second: TokenRow) -> TokenRow:
    between = second.start - len(first.ids)
    mask = [*first.mask, *[0] * between, *second.mask]
    rollout = [*first.rollout, *[0.0] * between, *second.rollout]
    return TokenRow(second.ids, first.start, mask, rollout)


def update(
    engine: InferenceEngine, rows: Sequence[TokenRow], before: Sequence[list[float]]
) -> tuple[dict[str, float], str]:
    """Compare log probs before and after an update with the weights of the model's folder, and
    count what the next prompt takes from the prefix cache. Returns no numbers, and the reason, if
    the engine serves other weights than the folder's."""
    from safetensors.torch import load_file

    if engine.weight_version:
        return {}, "the engine serves updated weights"
    files = sorted(Path(engine.model_folder).glob("*.safetensors"))
    if not files:
        return {}, "the model's folder has no .safetensors files"
    prompt = as_prompt(rows[0].ids)
    engine.get_logprobs(prompt, [rows[0].ids[:1]])  # so that its prefix is cached
    weights = (weight for file in files for weight in load_file(file).items())
    try:
        engine.update_weights(weights, version=engine.weight_version)
    except ConfigError as failure:
        return {}, str(failure)
    [cached] = engine.generate(prompt, max_tokens=1, tools=[], progress=False, temperature=0)
    after = whole(engine, rows)
    return {
        **distances(np.concatenate(before), np.concatenate(after), "update_weights/"),
        "update_weights/cached_tokens": float(cached.cached_tokens),
    }, ""
