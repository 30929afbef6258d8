"""What the rollout is compared with, an engine on Transformers or a trainer's batch: its log probs,
and how its texts and ids differ from the rollout's."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from _inf.apps.check.rows import Row, TrainerBatch, as_prompt
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


def text_differences(ours: Tokenizer, theirs: Tokenizer, texts: Sequence[str]) -> dict[str, float]:
    """The shares of prompts whose text, and whose ids from equal texts, differ."""
    asked = [[{"role": "user", "content": text}] for text in texts]
    own, other = ([prompt_text(each, messages) for messages in asked] for each in (ours, theirs))
    found = {
        "prompts/text_differs": fmean(a != b for a, b in zip(own, other, strict=True)),
        "prompts/ids_differ": fmean(encoded(ours, text) != encoded(theirs, text) for text in own),
    }
    if None not in (ours.chat_template, theirs.chat_template):
        thoughts = [prompt_text(each, THOUGHT) for each in (ours, theirs)]
        found["prompts/thinking_differs"] = float(thoughts[0] != thoughts[1])
    return found


def batch_differences(batch: TrainerBatch, tokenizer: Tokenizer) -> dict[str, float]:
    """The same for a batch's `raw_prompt`; and the share of `messages` with an assistant message
    whose text is not in the row's ids."""
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
            said = [each.get("content") or "" for each in messages if each["role"] == "assistant"]
            missing.append(any(str(answer).strip() not in text for answer in said))
        found["prompts/messages_missing"] = fmean(missing)
    return found


def prompt_text(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> str:
    """Messages as text for the model; the last one's own if it has no chat template."""
    if tokenizer.chat_template is None:
        return str(messages[-1]["content"])
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a prompt's text, in which a chat template has written the special tokens."""
    special = tokenizer.chat_template is None
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])
