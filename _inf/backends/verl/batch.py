"""Builds the `DataProto` that verl's rollout takes from requests.

Out: `input_ids`, `attention_mask`, `position_ids`, int64, rows x longest prompt, left-padded; in
`non_tensor_batch` the unpadded `raw_prompt_ids` (without them verl strips real tokens that equal
the pad token) and `sampling_params`, one dict per row with SGLang's names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from _inf.backends.verl.sampling import sglang_params
from _inf.response.trainer_batch import column
from _inf.types import ModelInfo, Request


def data_proto(requests: Sequence[Request], model: ModelInfo) -> Any:
    """Return a verl `DataProto` with one row per request."""
    import torch
    from verl import DataProto

    rows = [request.token_ids for request in requests]
    width = max(map(len, rows))
    pad = model.tokenizer.pad_token_id
    ids = torch.tensor([[pad] * (width - len(row)) + row for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    mask = (torch.arange(width)[None, :] >= width - lengths[:, None]).long()
    return DataProto.from_dict(
        tensors={
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0),
        },
        non_tensors={
            "raw_prompt_ids": column(rows),
            "sampling_params": column([sglang_params(request.params) for request in requests]),
        },
        meta_info={
            "eos_token_id": sorted(model.eos_token_ids),
            "do_sample": not all(request.params.greedy for request in requests),
        },
    )
