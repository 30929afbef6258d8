"""The rows with images of a batch that a verl trainer generates with itself (verl 0.6.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from _inf.errors import ConfigError, shown
from _inf.parts.images import Images
from _inf.parts.images.batches import INPUTS
from _inf.parts.images.prompt import places_of, processor_of
from _inf.parts.images.sglang import ImageInputs, Translation
from _inf.request.messages import is_empty
from _inf.request.prompts import object_array

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from verl import DataProto

DATA = "multi_modal_data"


def with_inputs(prompts: DataProto, hf_config: PretrainedConfig, folder: str) -> None:
    """Give each row with `multi_modal_data` its `input_ids`, in which each image has all of its
    tokens, and what the model's processor has made, or makes, of its images."""
    columns, batch = prompts.non_tensor_batch, prompts.batch
    made = columns.get(INPUTS, [None] * len(prompts))
    ids = [
        row[mask.bool()].tolist()
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    data: list[dict[str, object] | None] = []
    if not all(value is None or is_empty(value) for value in columns[DATA]):
        Translation.check(hf_config)
    for row, value in enumerate(columns[DATA]):
        if value is None or is_empty(value):
            data.append(None)
            continue
        images = _images(value, f"non_tensor_batch[{DATA!r}][{row}]")
        inputs = made[row] or processor_of(folder).image_processor(images, return_tensors="pt")
        part = _part(ids[row], dict(inputs), processor_of(folder), row)
        data.append({"image": [ImageInputs(part)]})
    columns["raw_prompt_ids"], columns[DATA] = object_array(ids), object_array(data)


def _images(value: object, where: str) -> list[object]:
    if not isinstance(value, Mapping) or set(value) != {"image"}:
        kinds = sorted(value) if isinstance(value, Mapping) else shown(value)
        raise ConfigError(f'{where}: {kinds}: only {{"image": [...]}} is supported.')
    images = list(value["image"])
    if not all(isinstance(image, Image.Image) for image in images):  # a processor would open them
        raise ConfigError(f"{where}: only images of PIL are read, and no paths or addresses.")
    return images


def _part(ids: list[int], inputs: Mapping[str, torch.Tensor], processor: Any, row: int) -> Images:
    """Refuses ids with another number of image tokens than their images have: SGLang's process
    would die of it."""
    places = places_of(ids, processor)
    tokens = sum(last + 1 - start for start, last in places)
    grid = inputs["image_grid_thw"]
    expected = int(grid.prod(dim=1).sum()) // processor.image_processor.merge_size**2
    if tokens != expected:
        raise ConfigError(
            f"batch['input_ids'][{row}] has {tokens} tokens of images, and its images have "
            f"{expected}; give rows that are not cut, in which a processor wrote them."
        )
    numbers = b"".join(
        inputs[name].numpy().tobytes() for name in ("pixel_values", "image_grid_thw")
    )
    return Images((hashlib.sha256(numbers).hexdigest(),), places, inputs)
