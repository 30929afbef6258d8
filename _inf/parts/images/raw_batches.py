"""The rows with images of a batch that a verl trainer generates with itself (verl 0.6.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from PIL import Image

from _inf.errors import ConfigError, shown
from _inf.parts.images import Images
from _inf.parts.images.batches import DATA
from _inf.parts.images.digests import digest
from _inf.parts.images.prompt import places_of, processor_of, refusal
from _inf.parts.images.sglang import ImageInputs, Translation
from _inf.request.messages import is_empty
from _inf.request.prompts import object_array

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig
    from verl import DataProto

GRID = "image_grid_thw"  # of Qwen's models, which are those that are exact


def with_inputs(prompts: DataProto, hf_config: PretrainedConfig, folder: str) -> None:
    """Give each row with images in `multi_modal_data` its `input_ids`, in which each image has all
    of its tokens, and what the model's processor makes of its images."""
    columns, batch = prompts.non_tensor_batch, prompts.batch
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
            inputs = dict(processor.image_processor(images, return_tensors="pt"))
        places = _places(ids[row], inputs, processor, row)
        part = Images(tuple(map(digest, images)), places, inputs)
        data.append({"image": [ImageInputs(part)]})
    columns["raw_prompt_ids"], columns[DATA] = object_array(ids), object_array(data)


def _images(value: object, where: str) -> list[Image.Image]:
    if value is None or is_empty(value):
        return []
    if not isinstance(value, Mapping) or set(value) != {"image"}:
        kinds = sorted(value) if isinstance(value, Mapping) else shown(value)
        raise ConfigError(f'{where}: {kinds}: only {{"image": [...]}} is supported.')
    images = list(value["image"])
    if not all(isinstance(image, Image.Image) for image in images):  # a processor would open them
        raise ConfigError(f"{where}: only images of PIL are read, and no paths or addresses.")
    return images


def _places(
    ids: list[int], inputs: Mapping[str, torch.Tensor], processor: Any, row: int
) -> list[tuple[int, int]]:
    """Where the images are. Refuses what SGLang's process would die of: ids with more or fewer
    tokens of images than these have."""
    places = places_of(ids, processor)
    tokens = sum(last + 1 - start for start, last in places)
    expected = int(inputs[GRID].prod(dim=-1).sum()) // processor.image_processor.merge_size**2
    if tokens != expected:
        raise ConfigError(
            f"batch['input_ids'][{row}] has {tokens} tokens of images, and its images have "
            f"{expected}; give rows that are not cut, in which a processor wrote them."
        )
    return places
