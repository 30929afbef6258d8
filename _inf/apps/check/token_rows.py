"""The rows that are compared, sampled here or read from a trainer's batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from _inf.apps.rollouts.sources import rows_of_batch
from _inf.errors import ConfigError, at_fault, error_text, shown
from _inf.runtime.extras import require_verl
from _inf.types import Tokenizer

ROLLOUT, TRAINER = "rollout_log_probs", "old_log_probs"


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
    def of(cls, row: Mapping[str, Any]) -> TokenRow:
        """A row in the form of docs/rollouts.md."""
        prompt, rollout = row["prompt_token_ids"], row.get("logprobs") or []
        return cls([*prompt, *row["response_ids"]], len(prompt), row["response_mask"], rollout)

    @property
    def sampled(self) -> list[int]:
        """The places in `ids` of the sampled tokens."""
        return [self.start + place for place, bit in enumerate(self.mask) if bit]


@dataclasses.dataclass(frozen=True)
class TrainerBatch:
    """A trainer's batch.

    trainer: per row the trainer's log prob of each token of the response. messages, prompts: the
    rows' conversations and prompts as messages; empty if the batch has no such column.
    """

    rows: list[TokenRow]
    trainer: list[list[float]]
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
    rows = rows_of_batch(batch, "against", (TRAINER,))
    temperature = batch.meta_info.get("temperature", 1)
    if ROLLOUT not in batch.batch and temperature != 1:
        raise ConfigError(
            f"against: the batch has temperature {temperature} and no column {ROLLOUT}; "
            "the engine scores at temperature 1 only. Keep the rollout's own log probs in it."
        )
    if not any(any(row["response_mask"]) for row in rows):
        raise ConfigError.of("against", "the batch has no token whose response_mask is 1.")
    named: list[list[Any]] = [[r.get(name) for r in rows] for name in ("messages", "raw_prompt")]
    columns = [[] if None in column else column for column in named]
    return TrainerBatch([TokenRow.of(row) for row in rows], [r[TRAINER] for r in rows], *columns)


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
