"""The rows that are compared, sampled here or read from a trainer's batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from _inf.errors import ConfigError, at_fault, error_text, shown
from _inf.response.row import GenerationRow
from _inf.runtime.extras import require_verl
from _inf.types import Tokenizer

ROLLOUT, TRAINER = "rollout_log_probs", "old_log_probs"
NEEDED = ("input_ids", "attention_mask", "responses", "response_mask", TRAINER)


@dataclasses.dataclass(frozen=True)
class TokenRow:
    """A prompt and its response.

    start: where the response begins in `ids`. mask: 1 for each token of the response that the model
    sampled. rollout: the log probs that the rollout gave, one per token of the response, or none at
    all.
    """

    ids: list[int]
    start: int
    mask: list[int]
    rollout: list[float]

    @classmethod
    def of(cls, answer: GenerationRow) -> TokenRow:
        """The row of an answer of one or more turns."""
        prompt, (ids, mask, logprobs) = answer.prompt_token_ids or [], answer.response
        return cls([*prompt, *ids], len(prompt), mask, logprobs or [])

    @property
    def sampled(self) -> list[int]:
        """The places in `ids` of the sampled tokens."""
        return [self.start + place for place, bit in enumerate(self.mask) if bit]


@dataclasses.dataclass(frozen=True)
class TrainerBatch:
    """A trainer's batch.

    trainer: per row and token of the response its log prob, and 0 for a rank. messages, prompts:
    the rows' conversations and prompts as messages, if the batch has such columns.
    """

    rows: list[TokenRow]
    trainer: list[list[tuple[float, int]]]
    messages: list[list[dict[str, Any]]]
    prompts: list[list[dict[str, Any]]]


def as_prompt(ids: Sequence[int]) -> dict[str, list[int]]:
    """Return ids as a prompt of `generate` and `score`."""
    return {"prompt_token_ids": list(ids)}


def prompt_text(tokenizer: Tokenizer, messages: list[dict[str, Any]]) -> str:
    """Return messages as text for the model; without a chat template, the last one's content."""
    if tokenizer.chat_template is None:
        return str(messages[-1]["content"])
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a prompt's text, in which a chat template has written the special
    tokens."""
    special = tokenizer.chat_template is None
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])


@at_fault(key="against")
def read_batch(against: Any) -> TrainerBatch:
    """Read a `DataProto`, a file of one, or a .safetensors file with the same tensors."""
    batch = _opened(against)
    columns, others, meta = batch.batch, batch.non_tensor_batch, batch.meta_info
    if missing := [name for name in NEEDED if name not in columns]:
        raise ConfigError(
            f"against: the batch has no column {missing[0]}; it needs {', '.join(NEEDED)}, as "
            f"verl's trainer has them, and {ROLLOUT} unless the engine shall compute these."
        )
    _check_shapes(columns)
    if ROLLOUT not in columns and meta.get("temperature", 1) != 1:
        raise ConfigError(
            f"against: the batch has temperature {meta['temperature']} and no column {ROLLOUT}; "
            "the engine scores at temperature 1 only. Keep the rollout's own log probs in it."
        )
    rows = read_rows(columns)
    trainer = [[(logprob, 0) for logprob in values] for values in _of_responses(columns, TRAINER)]
    if not any(row.sampled for row in rows):
        raise ConfigError.of("against", "the batch has no token whose response_mask is 1.")
    listed = [_messages(others.get(name)) for name in ("messages", "raw_prompt")]
    return TrainerBatch(rows, trainer, *listed)


def _check_shapes(columns: Mapping[str, Any]) -> None:
    whole, width = tuple(columns["input_ids"].shape), columns["responses"].shape[-1]
    for name in [*NEEDED, *([ROLLOUT] if ROLLOUT in columns else [])]:
        shape = tuple(columns[name].shape)
        wrong = len(shape) != 2 or shape[0] != whole[0] or shape[1] < width
        if wrong or (name == "attention_mask" and shape != whole):
            raise ConfigError(
                f"against: {name} has the shape {shape}, which does not fit to input_ids, {whole}, "
                f"and responses, {tuple(columns['responses'].shape)}."
            )


def read_rows(columns: Mapping[str, Any]) -> list[TokenRow]:
    masks = _of_responses(columns, "response_mask")
    rollout = _of_responses(columns, ROLLOUT) if ROLLOUT in columns else [[] for _ in masks]
    ids = [
        row[seen.bool()].tolist()
        for row, seen in zip(columns["input_ids"], columns["attention_mask"], strict=True)
    ]
    return [
        TokenRow(tokens, len(tokens) - len(mask), [int(bit) for bit in mask], logprobs)
        for tokens, mask, logprobs in zip(ids, masks, rollout, strict=True)
    ]


def _of_responses(columns: Mapping[str, Any], name: str) -> list[list[Any]]:
    """Return a column's values at the responses, without padding."""
    width = columns["responses"].shape[1]
    seen = columns["attention_mask"][:, -width:].bool()
    return [row[kept].tolist() for row, kept in zip(columns[name][:, -width:], seen, strict=True)]


def _opened(against: Any) -> Any:
    """Return a batch, or read one from a file: .safetensors, else of `DataProto.save_to_disk`."""
    if not isinstance(against, str | Path):
        if getattr(against, "batch", None) is None:
            wrong = f"{shown(against)} is neither an engine nor a DataProto nor a file of one."
            raise ConfigError.of("against", wrong)
        return against
    path = Path(against)
    if not path.is_file():
        raise ConfigError.of("against", f"there is no file {path}.")
    in_safetensors = path.suffix == ".safetensors"
    if not in_safetensors:
        require_verl("against")
    try:
        if in_safetensors:
            from safetensors.torch import load_file

            return SimpleNamespace(batch=load_file(path), non_tensor_batch={}, meta_info={})
        from verl import DataProto

        return _opened(DataProto.load_from_disk(path))
    except Exception as failure:  # SafetensorError, and whatever a pickle's classes raise
        form = "a .safetensors file" if in_safetensors else "a file of DataProto.save_to_disk"
        raise ConfigError(
            f"against: {path} is not {form}, or it is damaged ({error_text(failure)}); write it "
            "again."
        ) from failure


def _messages(column: Any) -> list[list[dict[str, Any]]]:
    """A column of conversations, each a list of messages or verl's `{"messages": [...]}`."""
    rows: Sequence[Any] = [] if column is None else list(column)
    return [list(row["messages"] if isinstance(row, Mapping) else row) for row in rows]
