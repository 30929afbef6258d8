"""The rows with images of a batch that a verl trainer generates with itself (verl 0.6.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from _inf.errors import ConfigError, shown
from _inf.parts.images import Images
from _inf.parts.images.batches import DATA, INPUTS
from _inf.parts.images.prompt import places_of, processor_of, refusal
from _inf.parts.images.sglang import ImageInputs, Translation
from _inf.request.messages import is_empty
from _inf.request.prompts import object_array

if TYPE_CHECKING:
    from transformers import PretrainedConfig
    from verl import DataProto

PATCHES, GRID = "pixel_values", "image_grid_thw"  # of Qwen's models, which are those that are exact


def with_inputs(prompts: DataProto, hf_config: PretrainedConfig, folder: str) -> None:
    """Give each row with images in `multi_modal_data` its `input_ids`, in which each image has all
    of its tokens, and what the model's processor has made, or makes, of its images."""
    columns, batch = prompts.non_tensor_batch, prompts.batch
    made = columns.get(INPUTS, [None] * len(prompts))
    ids = [
        row[mask.bool()].tolist()
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    data: list[dict[str, object] | None] = []
    for row, value in enumerate(columns[DATA]):
        where = f"non_tensor_batch[{DATA!r}][{row}]"
        images = _images(value, where)
        if not images:
            data.append(None)
            continue
        Translation.check(hf_config)
        processor = processor_of(folder)
        with refusal(ConfigError, f"{where}: the model's processor refused its images"):
            inputs = made[row] or processor.image_processor(images, return_tensors="pt")
        data.append({"image": [ImageInputs(_part(ids[row], inputs, processor, row))]})
    columns["raw_prompt_ids"], columns[DATA] = object_array(ids), object_array(data)


def _images(value: object, where: str) -> list[object]:
    if value is None or is_empty(value):
        return []
    if not isinstance(value, Mapping) or set(value) != {"image"}:
        kinds = sorted(value) if isinstance(value, Mapping) else shown(value)
        raise ConfigError(f'{where}: {kinds}: only {{"image": [...]}} is supported.')
    images = list(value["image"])
    if not all(isinstance(image, Image.Image) for image in images):  # a processor would open them
        raise ConfigError(f"{where}: only images of PIL are read, and no paths or addresses.")
    return images


def _part(ids: list[int], inputs: Mapping[str, torch.Tensor], processor: Any, row: int) -> Images:
    """Refuses what SGLang's process would die of: inputs that are not those of their grid, and ids
    with more or fewer image tokens than their images have."""
    sizes, where = processor.image_processor, f"non_tensor_batch[{INPUTS!r}][{row}]"
    if missing := {PATCHES, GRID} - set(inputs):
        raise ConfigError(f"{where} has no {shown(sorted(missing)[0])}.")
    patches, grid = inputs[PATCHES], inputs[GRID]
    of_patch = 3 * sizes.temporal_patch_size * sizes.patch_size**2
    of_grid = int(grid.prod(dim=-1).sum()), of_patch
    whole = grid.shape[1:] == (3,) and not (grid[:, 1:] % sizes.merge_size).any()
    if tuple(patches.shape) != of_grid or not whole:
        raise ConfigError(
            f"{where}: {PATCHES} has shape {tuple(patches.shape)}, and by its {GRID}, "
            f"{grid.tolist()}, it should have {of_grid}; give what the model's processor makes."
        )
    places = places_of(ids, processor)
    tokens = sum(last + 1 - start for start, last in places)
    expected = of_grid[0] // sizes.merge_size**2
    if tokens != expected:
        raise ConfigError(
            f"batch['input_ids'][{row}] has {tokens} tokens of images, and its images have "
            f"{expected}; give rows that are not cut, in which a processor wrote them."
        )
    numbers = patches.float().numpy().tobytes() + grid.numpy().tobytes()
    return Images((hashlib.sha256(numbers).hexdigest(),), places, {PATCHES: patches, GRID: grid})
