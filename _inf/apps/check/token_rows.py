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
    sampled. logprobs: the rollout's, one per token of the response, or none at all.
    """

    ids: list[int]
    start: int
    mask: list[int]
    logprobs: list[float]
    seed: int | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> TokenRow:
        """A row in the form of docs/rollouts.md."""
        prompt, logprobs = row["prompt_token_ids"], row.get("logprobs") or []
        ids = [*prompt, *row["response_ids"]]
        return cls(ids, len(prompt), row["response_mask"], logprobs, row.get("seed"))

    @property
    def prompt(self) -> dict[str, list[int]]:
        return as_prompt(self.ids[: self.start])

    @property
    def response(self) -> list[int]:
        return self.ids[self.start :]

    @property
    def sampled(self) -> list[int]:
        """The places in `ids` of the sampled tokens."""
        return [place for place, bit in enumerate(self.mask, self.start) if bit]


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
def read_batch(against: Any) -> list[dict[str, Any]]:
    """Read the rows, in the form of docs/rollouts.md, of a `DataProto`, a file of one, or a
    .safetensors file with the same tensors."""
    batch = _of_file(Path(against)) if isinstance(against, str | Path) else against
    if getattr(batch, "batch", None) is None:
        wrong = f"{shown(against)} is neither an engine nor a DataProto nor a file of one."
        raise ConfigError.of("against", wrong)
    rows = rows_of_batch(batch, "against", (TRAINER,))
    temperature = batch.meta_info.get("temperature", 1)
    if ROLLOUT not in batch.batch and temperature != 1:
        raise ConfigError(
            f"against: the batch has temperature {temperature} and no column {ROLLOUT}; "
            "the engine scores at temperature 1 only. Keep the rollout's own log probs in it."
        )
    if not any(any(row["response_mask"]) for row in rows):
        raise ConfigError.of("against", "the batch has no token whose response_mask is 1.")
    return rows


def _of_file(path: Path) -> Any:
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

        return DataProto.load_from_disk(path)
    except Exception as failure:  # SafetensorError, and whatever a pickle's classes raise
        form = "a .safetensors file" if in_safetensors else "a file of DataProto.save_to_disk"
        raise ConfigError(
            f"against: {path} is not {form}, or it is damaged ({error_text(failure)}); write it "
            "again."
        ) from failure
