"""From prompts and sampling parameters to the `DataProto` that verl's rollout takes.

Out: `input_ids`, `attention_mask`, `position_ids`, int64, rows x longest prompt, left-padded; in
`non_tensor_batch` the unpadded `raw_prompt_ids` (without them verl strips real tokens that equal
the pad) and `sampling_params`, a dict a row. Prompt-major: each prompt's `n` samples stand
together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from _inf.request.sampling import Sampling
from _inf.response.columns import column
from _inf.types import Prompt


def data_proto(
    prompts: Sequence[Prompt], sampling: Sampling, tokenizer: Any, eos_token_ids: Collection[int]
) -> Any:
    """A verl `DataProto` of `len(prompts) * sampling.n` rows."""
    import torch

    from _inf.backends.verl.rollout import DataProto

    rows = [prompt.token_ids for prompt in prompts for _ in range(sampling.n)]
    width = max(map(len, rows))
    pad = tokenizer.pad_token_id
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
            "sampling_params": column(list(sampling.samples())),
        },
        meta_info={"eos_token_id": sorted(eos_token_ids), "do_sample": not sampling.greedy},
    )
