"""What the rollout is compared with: an engine on Transformers, or a trainer's batch.

In: rows. Out: pairs of log probs, and how the reference's texts and ids differ from the rollout's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from _inf.apps.check.engine_rows import as_prompt
from _inf.apps.check.metrics import Pairs
from _inf.apps.check.rows import Row, TrainerBatch
from _inf.types import Tokenizer

if TYPE_CHECKING:
    from inf import InferenceEngine

THOUGHT = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4"},
    {"role": "user", "content": "And 3 + 3?"},
]


def started(engine: InferenceEngine) -> InferenceEngine:
    """An engine with `rollout.name: hf` on the folder, the dtype and the device of `engine`."""
    own = engine.config.rollout
    names = ("prompt_length", "response_length", "max_model_len")
    dtype = str(engine.rollout.dtype).removeprefix("torch.")
    return type(engine)(
        model_path=engine.model_config.local_path,
        trust_remote_code=engine.config.trust_remote_code,
        device="cpu" if engine.on_cpu else "cuda",
        rollout={"name": "hf", "dtype": dtype, **{name: getattr(own, name) for name in names}},
    )


def computed(reference: InferenceEngine, rows: Sequence[Row]) -> list[list[tuple[float, int]]]:
    """The log prob and the rank of each token but the first, row by row: logits are large."""
    import torch

    found = []
    for row in rows:
        [logits] = reference.get_logits(as_prompt(row.ids[:1]), [row.ids[1:]])
        own = logits.gather(1, torch.tensor(row.ids[1:])[:, None])
        ranks = (logits > own).sum(-1) + 1
        logprobs = own[:, 0] - torch.logsumexp(logits, -1)
        found.append(list(zip(logprobs.tolist(), ranks.tolist(), strict=True)))
    return found


def sampled_pairs(rows: Sequence[Row], theirs: Sequence[list[tuple[float, int]]]) -> Pairs:
    """The sampled tokens. theirs: log prob and rank of each token but a row's first."""
    return _pairs(
        (number, row, place, row.rollout[place - row.start], *theirs[number][place - 1])
        for number, row in enumerate(rows)
        for place in row.sampled
    )


def whole_pairs(
    rows: Sequence[Row],
    ours: Sequence[Sequence[float]],
    theirs: Sequence[list[tuple[float, int]]],
) -> Pairs:
    """All tokens but the first of each row."""
    return _pairs(
        (number, row, place, ours[number][place - 1], *theirs[number][place - 1])
        for number, row in enumerate(rows)
        for place in range(1, len(row.ids))
    )


def batch_pairs(batch: TrainerBatch, rows: Sequence[Row]) -> Pairs:
    """The sampled tokens of a trainer's batch, whose rows have the rollout's log probs."""
    return _pairs(
        (number, row, place, row.rollout[place - row.start], values[place - row.start], 0)
        for number, (row, values) in enumerate(zip(rows, batch.trainer, strict=True))
        for place in row.sampled
    )


def _pairs(found: Any) -> Pairs:
    numbers, rows, places, ours, theirs, ranks = zip(*found, strict=True)
    known: dict[tuple[int, int], int] = {}
    contexts = {
        number: _contexts(row.ids, known)
        for number, row in dict(zip(numbers, rows, strict=True)).items()
    }
    columns = (
        numbers,
        places,
        [row.ids[place] for row, place in zip(rows, places, strict=True)],
        [contexts[number][place] for number, place in zip(numbers, places, strict=True)],
        ranks,
    )
    row, position, token, context, rank = (np.array(column, np.int64) for column in columns)
    both = np.array([ours, theirs], np.float64)
    return Pairs(row, position, token, context, rank, *both)


def _contexts(ids: Sequence[int], known: dict[tuple[int, int], int]) -> list[int]:
    """A number for what precedes each token, the same for the same ids; `known` gets the new."""
    contexts = [0]
    for token in ids[:-1]:
        contexts.append(known.setdefault((contexts[-1], token), len(known) + 1))
    return contexts


def text_differences(ours: Tokenizer, theirs: Tokenizer, texts: Sequence[str]) -> dict[str, float]:
    """The shares of prompts whose text, and whose ids from equal texts, differ."""
    asked = [[{"role": "user", "content": text}] for text in texts]
    both = [(_text(ours, each), _text(theirs, each)) for each in asked]
    differ = [a != b for a, b in both]
    ids = [_encoded(ours, a) != _encoded(theirs, a) for a, _ in both]
    found = {
        "prompts/text_differs": sum(differ) / len(both),
        "prompts/ids_differ": sum(ids) / len(both),
    }
    if None not in (ours.chat_template, theirs.chat_template):
        found["prompts/thinking_differs"] = float(_text(ours, THOUGHT) != _text(theirs, THOUGHT))
    return found


def batch_differences(batch: TrainerBatch, tokenizer: Tokenizer) -> dict[str, float]:
    """The same for a batch's `raw_prompt`; and the share of `messages` with an assistant message
    whose text is not in the row's ids."""
    found = {}
    if batch.prompts:
        own = [row.ids[: row.start] for row in batch.rows]
        texts = [_text(tokenizer, messages) for messages in batch.prompts]
        decoded = [tokenizer.decode(ids) for ids in own]
        same = [a == b for a, b in zip(texts, decoded, strict=True)]
        ids = [
            equal and _encoded(tokenizer, text) != sent
            for equal, text, sent in zip(same, texts, own, strict=True)
        ]
        found["prompts/text_differs"] = 1 - sum(same) / len(same)
        found["prompts/ids_differ"] = sum(ids) / len(ids)
    if batch.messages:
        missing = [
            any(
                message["role"] == "assistant"
                and str(message.get("content") or "").strip() not in tokenizer.decode(row.ids)
                for message in messages
            )
            for row, messages in zip(batch.rows, batch.messages, strict=True)
        ]
        found["prompts/messages_missing"] = sum(missing) / len(missing)
    return found


def _text(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> str:
    if tokenizer.chat_template is None:
        return str(messages[-1]["content"])
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
