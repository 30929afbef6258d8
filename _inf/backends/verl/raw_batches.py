"""Checks and corrects the batches of a trainer that calls `engine.rollout` itself (verl 0.6.1)."""

from __future__ import annotations

import torch
from verl import DataProto

from _inf.errors import ConfigError, shown
from _inf.request.messages import is_empty
from _inf.request.prompts import object_array
from _inf.types import RequestOutput

INSTEAD = "for tools and interactions use the engine's generate() or rollout_batch()."
NOT_ONE_TURN = ("tools_kwargs", "interaction_kwargs")


def check_one_turn(prompts: DataProto) -> None:
    """Refuse these columns unless they are empty; verl's datasets have them in every row."""
    for name in NOT_ONE_TURN:
        for row, value in enumerate(prompts.non_tensor_batch.get(name, ())):
            if value is not None and not is_empty(value):
                raise ConfigError(
                    f"non_tensor_batch[{name!r}][{row}]: {shown(value)}: this call answers one "
                    f"turn; {INSTEAD}"
                )


def corrected(output: DataProto, rows: list[RequestOutput]) -> DataProto:
    """Replace verl's masks by masks from the engine's own lengths. verl takes everything up to the
    first EOS as the answer (`get_response_mask`), which includes padding if a row was cut by length
    or stopped by another id, and it pads log probs with the pad token's id."""
    batch = output.batch
    width = batch["responses"].shape[1]
    lengths = torch.tensor([len(row.token_ids) for row in rows])
    mask = (torch.arange(width)[None, :] < lengths[:, None]).to(batch["attention_mask"].dtype)
    batch["response_mask"] = mask
    batch["attention_mask"] = torch.cat([batch["attention_mask"][:, :-width], mask], dim=1)
    if "rollout_log_probs" in batch:
        batch["rollout_log_probs"] = batch["rollout_log_probs"] * mask
    output.non_tensor_batch["rows"] = object_array(rows)
    return output
