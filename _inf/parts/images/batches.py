"""Images in a batch for verl's trainer (0.6.1): `multi_modal_inputs`, and Qwen's positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from _inf.parts.images.prompt import images_only, processor_of
from _inf.parts.kept import MULTI_MODAL
from _inf.request.prompts import object_array

if TYPE_CHECKING:
    from verl import DataProto

    from _inf.parts.images import Images

INPUTS, DATA = MULTI_MODAL


def add_columns(batch: DataProto, images: Sequence[Images | None], folder: str) -> None:
    """Add what verl's actor gives its model (`workers/actor/dp_actor.py`). images: of each row."""
    inputs = [{} if part is None else dict(part.inputs) for part in images]
    batch.non_tensor_batch[INPUTS] = object_array(inputs)
    processor = processor_of(folder)
    if "Qwen2VLImageProcessor" in type(processor.image_processor).__name__:  # as verl asks
        rows = [_positions(batch, row, part, processor) for row, part in enumerate(images)]
        batch.batch["position_ids"] = torch.stack(rows)


def _positions(batch: DataProto, row: int, images: Images | None, processor: Any) -> torch.Tensor:
    """4 x tokens: places of the text, and the model's three kinds
    (`utils/dataset/rl_dataset.py`)."""
    if "Qwen3VLProcessor" in type(processor).__name__:
        from verl.models.transformers.qwen3_vl import get_rope_index
    else:
        from verl.models.transformers.qwen2_vl import get_rope_index

    tensors = batch.batch
    ids, mask = tensors["input_ids"][row], tensors["attention_mask"][row]
    begin = int(mask.argmax())
    places = [(begin + start, begin + last) for start, last in (images.places if images else ())]
    known = torch.tensor(images_only(ids.tolist(), places))
    grid = images.inputs.get("image_grid_thw") if images else None
    three = get_rope_index(processor, known, image_grid_thw=grid, attention_mask=mask)
    return torch.cat([tensors["position_ids"][row][None], three])
