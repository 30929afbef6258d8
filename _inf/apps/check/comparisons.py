"""Measures a running engine against itself (rows as sampled, scored again, sampled alone, in later
turns) and against a reference, an engine on Transformers or a trainer's batch.

Only public calls are used, and the engine is left as it was, but for its prefix cache, which
`update` empties.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from _inf.apps.check.differences import Pairs, distances
from _inf.apps.check.token_rows import TRAINER, TokenRow, as_prompt, encoded, prompt_text
from _inf.apps.rollouts.sources import as_rollouts
from _inf.errors import ConfigError
from _inf.types import JSON, Tokenizer

if TYPE_CHECKING:
    from inf import InferenceEngine

SEED = 0
SECOND_TURN = "And why?"
CONVERSATIONS = 4  # of two turns
PROBES = 16  # sequences of two tokens
# At temperature 1 without filters, log probs are log(softmax(logits)), as `score` gives them.
PLAIN: JSON = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0}
PLAIN |= {"tools": [], "progress": False}
THOUGHT = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4"},
    {"role": "user", "content": "And 3 + 3?"},
]
Scores = list[list[float]]  # log probs of tokens, row by row


@dataclasses.dataclass
class Measured:
    """metrics: by name. notes: what was left out, and why. pairs: the sampled tokens, with the
    reference's log probs; whole: all tokens of the sequences, computed by the rollout without its
    prefix cache, if the reference could compute them too."""

    pairs: Pairs
    whole: Pairs | None
    metrics: dict[str, float]
    notes: list[str]


def sample_rows(
    engine: InferenceEngine, prompts: Sequence[object], n: int, max_tokens: int
) -> list[TokenRow]:
    """Sample `n` rows of each prompt in one call."""
    output = engine.generate(prompts, n=n, seed=SEED, max_tokens=max_tokens, **PLAIN)
    return [TokenRow.of(vars(row)) for row in as_rollouts(output)]


def rescored(engine: InferenceEngine, rows: Sequence[TokenRow]) -> Scores:
    """Return the log probs of each response, by a prefill that may start from a cached prompt."""
    return engine.get_logprobs([row.prompt for row in rows], [row.response for row in rows])


def from_the_beginning(engine: InferenceEngine, rows: Sequence[TokenRow]) -> Scores:
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
    engine: InferenceEngine, rows: Sequence[TokenRow], again: Scores
) -> dict[str, float]:
    """Compare sampled rows with a prefill's scores (prefill_decode), and those that start from a
    cached prompt with those from the beginning (prefix_reuse). again: `from_the_beginning`."""
    scored = np.concatenate(rescored(engine, rows))
    fresh = [values[row.start - 1 :] for values, row in zip(again, rows, strict=True)]
    return {
        **distances(np.concatenate([row.logprobs for row in rows]), scored, "prefill_decode/"),
        **distances(scored, np.concatenate(fresh), "prefix_reuse/"),
    }


def alone(engine: InferenceEngine, rows: Sequence[TokenRow]) -> dict[str, float]:
    """Sample rows of a batch again, each by itself, and compare them up to the first token that is
    another."""
    ours: list[float] = []
    theirs: list[float] = []
    for row in rows:
        size = len(row.response)
        [again] = engine.generate(row.prompt, seed=row.seed, max_tokens=size, **PLAIN)
        both = zip(row.response, again.token_ids or [], strict=False)
        same = next((place for place, (a, b) in enumerate(both) if a != b), size)
        ours += row.logprobs[:same]
        theirs += (again.logprobs or [])[:same]
    share = {"alone_in_batch/same_tokens": len(ours) / sum(len(row.response) for row in rows)}
    return {**distances(ours, theirs, "alone_in_batch/"), **share} if ours else share


def conversations(
    engine: InferenceEngine, rows: Sequence[TokenRow], max_tokens: int
) -> tuple[list[TokenRow], str]:
    """Return rows of two turns, with a second user message that is written here, and how they were
    made."""
    limits, tokenizer = engine.model.limits, engine.tokenizer
    glue = encoded(tokenizer, prompt_text(tokenizer, [{"role": "user", "content": SECOND_TURN}]))
    longest = min(limits.prompt, limits.total - max_tokens) - len(glue)
    first = [row for row in rows if row.logprobs and len(row.ids) <= longest][:CONVERSATIONS]
    if not first:
        return [], "not compared: a second turn does not fit into rollout.prompt_length"
    second = sample_rows(engine, [as_prompt(row.ids + glue) for row in first], 1, max_tokens)
    gap = len(glue)
    return [
        TokenRow(
            after.ids,
            row.start,
            [*row.mask, *[0] * gap, *after.mask],
            [*row.logprobs, *[0.0] * gap, *after.logprobs],
        )
        for row, after in zip(first, second, strict=True)
    ], "scripted: a second user message after the first answer"


def update(
    engine: InferenceEngine, rows: Sequence[TokenRow], before: Scores
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
    [cached] = engine.generate(prompt, max_tokens=1, **{**PLAIN, "temperature": 0})
    after = from_the_beginning(engine, rows)
    return {
        **distances(np.concatenate(before), np.concatenate(after), "update_weights/"),
        "update_weights/cached_tokens": float(cached.cached_tokens),
    }, ""


def against_engine(
    engine: InferenceEngine,
    other: InferenceEngine,
    texts: Sequence[str],
    rows: Sequence[TokenRow],
    again: Scores,
    max_tokens: int,
) -> Measured:
    """Compare with the logits of an engine on Transformers.

    rows: the sampled ones, and others without sampled tokens, of which only `again` counts.
    """
    turns, note = conversations(engine, rows, max_tokens)
    theirs = _of_logits(other, [*rows, *turns])
    metrics = _text_differences(engine.tokenizer, other.tokenizer, texts)
    if turns:
        both = Pairs.of(turns, theirs[len(rows) :])
        metrics |= distances(both.rollout, both.reference, "multi_turn/")
    theirs = theirs[: len(rows)]
    whole = [
        TokenRow(row.ids, 1, [1] * len(logprobs), logprobs)
        for row, logprobs in zip(rows, again, strict=True)
    ]
    return Measured(
        Pairs.of(rows, theirs), Pairs.of(whole, theirs), metrics, [f"multi_turn: {note}"]
    )


def against_batch(engine: InferenceEngine, batch: Sequence[Mapping[str, Any]]) -> Measured:
    """Compare the rows of a trainer's batch with its own log probs."""
    rows = [TokenRow.of(row) for row in batch]
    if not any(row.logprobs for row in rows):  # a row without a response has none either way
        scored = zip(rows, rescored(engine, rows), strict=True)
        rows = [dataclasses.replace(row, logprobs=logprobs) for row, logprobs in scored]
    note = "multi_turn: not compared: the trainer's batch has its own rows"
    return Measured(Pairs.of(rows, [row[TRAINER] for row in batch]), None, {}, [note])


@contextlib.contextmanager
def on_transformers(engine: InferenceEngine) -> Iterator[InferenceEngine]:
    """Yield the engine, if it gives logits; else start one with `rollout.name: hf` on its folder,
    its dtype and its device."""
    if "logits" in engine.supports:
        yield engine
        return
    rollout = engine.config.rollout
    with type(engine)(
        model_path=str(engine.model_folder),
        trust_remote_code=engine.config.trust_remote_code,
        device="cpu" if engine.on_cpu else "cuda",
        rollout={
            "name": "hf",
            "dtype": engine.model.dtype,
            "prompt_length": rollout.prompt_length,
            "response_length": rollout.response_length,
            "max_model_len": rollout.max_model_len,
        },
    ) as other:
        yield other


def _of_logits(reference: InferenceEngine, rows: Sequence[TokenRow]) -> Scores:
    """Return the log prob of each token but the first, row by row: logits are large."""
    return [of_logits(reference, as_prompt(row.ids[:1]), row.ids[1:]) for row in rows]


def of_logits(reference: InferenceEngine, prompt: object, ids: list[int]) -> list[float]:
    """Return the log prob of each of these ids after a prompt."""
    import torch

    [logits] = reference.get_logits([prompt], [ids])
    chosen = logits.gather(1, torch.tensor(ids)[:, None])
    found: list[float] = (chosen[:, 0] - torch.logsumexp(logits, -1)).tolist()
    return found


def _text_differences(ours: Tokenizer, theirs: Tokenizer, texts: Sequence[str]) -> dict[str, float]:
    """Return the shares of prompts, one of them with an earlier thought, whose text, and whose ids
    from equal texts, differ."""
    asked = [*([{"role": "user", "content": text}] for text in texts), THOUGHT]
    both = [[prompt_text(one, messages) for messages in asked] for one in (ours, theirs)]
    return {
        "prompts/text_differs": fmean(a != b for a, b in zip(*both, strict=True)),
        "prompts/ids_differ": fmean(encoded(ours, a) != encoded(theirs, a) for a in both[0]),
    }
