"""Compares the rollout with a reference, an engine on Transformers or a trainer's batch: log probs,
and the texts and ids of prompts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeAlias

from _inf.apps.check import engine_rows
from _inf.apps.check.differences import Pairs, distances
from _inf.apps.check.token_rows import TokenRow, TrainerBatch, as_prompt, encoded, prompt_text
from _inf.types import Tokenizer

if TYPE_CHECKING:
    from inf import InferenceEngine

# What a reference gives: the sampled tokens, its metrics, all tokens if it has them, and a note.
Measured: TypeAlias = tuple[Pairs, dict[str, float], Pairs | None, str]
THOUGHT = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4"},
    {"role": "user", "content": "And 3 + 3?"},
]


def against_engine(
    engine: InferenceEngine,
    other: Any,
    texts: Sequence[str],
    rows: Sequence[TokenRow],
    again: Sequence[list[float]],
    max_tokens: int,
) -> Measured:
    """Compare with an engine on Transformers, or if `other` is None with the engine's own logits;
    one that has none gets a second engine, which is started here.

    rows: the sampled ones, and others without sampled tokens, of which only `again` counts.
    """
    turns, note = engine_rows.conversations(engine, rows, max_tokens)
    with contextlib.ExitStack() as stack:
        if other is None:
            has_logits = "logits" in engine.supports
            other = engine if has_logits else stack.enter_context(_started(engine))
        theirs = _computed(other, [*rows, *turns])
        metrics = _text_differences(engine.tokenizer, other.tokenizer, texts)
    if turns:
        both = Pairs.of(turns, theirs[len(rows) :])
        metrics |= distances(both.rollout, both.reference, "multi_turn/")
    theirs = theirs[: len(rows)]
    whole = [
        TokenRow(row.ids, 1, [1] * len(logprobs), logprobs)
        for row, logprobs in zip(rows, again, strict=True)
    ]
    return Pairs.of(rows, theirs), metrics, Pairs.of(whole, theirs), f"multi_turn: {note}"


def against_batch(engine: InferenceEngine, batch: TrainerBatch) -> Measured:
    """Compare the rows of a trainer's batch with its own log probs."""
    rows = batch.rows
    if not any(row.rollout for row in rows):  # a row without a response has none either way
        scored = engine_rows.rescored(engine, rows)
        rows = [
            dataclasses.replace(row, rollout=logprobs)
            for row, logprobs in zip(rows, scored, strict=True)
        ]
    metrics = _batch_differences(batch, engine.tokenizer)
    note = "multi_turn: not compared: the trainer's batch has its own rows"
    return Pairs.of(rows, batch.trainer), metrics, None, note


def _started(engine: InferenceEngine) -> InferenceEngine:
    """Start an engine with `rollout.name: hf` on the folder, the dtype and the device of
    `engine`."""
    rollout = engine.config.rollout
    names = ("prompt_length", "response_length", "max_model_len")
    return type(engine)(
        model_path=str(engine.model_folder),
        trust_remote_code=engine.config.trust_remote_code,
        device="cpu" if engine.on_cpu else "cuda",
        rollout={
            "name": "hf",
            "dtype": engine.model.dtype,
            **{name: getattr(rollout, name) for name in names},
        },
    )


def _computed(reference: InferenceEngine, rows: Sequence[TokenRow]) -> list[list[float]]:
    """Return the log prob of each token but the first, row by row: logits are large."""
    import torch

    found = []
    for row in rows:
        [logits] = reference.get_logits(as_prompt(row.ids[:1]), [row.ids[1:]])
        chosen = logits.gather(1, torch.tensor(row.ids[1:])[:, None])
        found.append((chosen[:, 0] - torch.logsumexp(logits, -1)).tolist())
    return found


def _text_differences(ours: Tokenizer, theirs: Tokenizer, texts: Sequence[str]) -> dict[str, float]:
    """Return the shares of prompts whose text, and whose ids from equal texts, differ."""
    asked = [[{"role": "user", "content": text}] for text in texts]
    both = (ours, theirs)
    first, second = ([prompt_text(one, messages) for messages in asked] for one in both)
    found = {
        "prompts/text_differs": fmean(a != b for a, b in zip(first, second, strict=True)),
        "prompts/ids_differ": fmean(encoded(ours, text) != encoded(theirs, text) for text in first),
    }
    if None not in (ours.chat_template, theirs.chat_template):
        thoughts = {prompt_text(one, THOUGHT) for one in both}
        found["prompts/thinking_differs"] = float(len(thoughts) > 1)
    return found


def _batch_differences(batch: TrainerBatch, tokenizer: Tokenizer) -> dict[str, float]:
    """Return the same shares for a batch's `raw_prompt`, and the share of `messages` with an
    assistant message whose text is not in the row's ids."""
    found = {}
    if batch.prompts:
        sent = [row.ids[: row.start] for row in batch.rows]
        texts = [prompt_text(tokenizer, messages) for messages in batch.prompts]
        differ = [text != tokenizer.decode(ids) for text, ids in zip(texts, sent, strict=True)]
        found["prompts/text_differs"] = fmean(differ)
        found["prompts/ids_differ"] = fmean(
            not other and encoded(tokenizer, text) != ids
            for other, text, ids in zip(differ, texts, sent, strict=True)
        )
    if batch.messages:
        missing = []
        for row, messages in zip(batch.rows, batch.messages, strict=True):
            text = tokenizer.decode(row.ids)
            answers = [m.get("content") or "" for m in messages if m["role"] == "assistant"]
            missing.append(any(str(answer).strip() not in text for answer in answers))
        found["prompts/messages_missing"] = fmean(missing)
    return found
