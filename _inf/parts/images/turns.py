"""Images that tools return in a row with turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import pad

from _inf.errors import ConfigError, PromptError, shown
from _inf.parts.images.prompt import processor_of, refusal
from _inf.parts.images.reading import Opening, Source

if TYPE_CHECKING:
    from _inf.config.sections import ImageBounds
    from _inf.parts.images import Images
    from _inf.types import JSON, ModelInfo


def of_tool(content: Sequence[JSON], model: ModelInfo, bounds: ImageBounds) -> list[JSON]:
    """A tool's result with its images opened: PIL's, or bytes of a file. No path is: the model may
    have written it. Raises `PromptError`, also if the model reads no images, or not these."""
    from PIL.Image import Image

    try:
        processor = processor_of(model.tokenizer.name_or_path)
    except ConfigError as failure:
        raise PromptError(f"it returned an image: {failure}") from failure
    opening = Opening(bounds, "the result")
    read: list[JSON] = []
    for number, part in enumerate(content):
        where = f"content[{number}]"
        if part["type"] == "image":
            if not isinstance(part["image"], Image | bytes):
                given = shown(part["image"])
                raise PromptError(f"{where}: {given} is no image of PIL, and no bytes of one")
            image = opening.opened(Source.of(part, where))
            with refusal(PromptError, f"{where}: the model's processor refused the image"):
                processor.image_processor([image])
            part = {**part, "image": image}
        read.append(part)
    return read


def joined(own: Images, later: Images, before: int, tokens: int) -> Images:
    """Both, as `Images.followed_by` says."""
    offset = before + tokens - later.tokens
    places = [(first + offset, last + offset) for first, last in later.places]
    return replace(
        own,
        digests=(*own.digests, *later.digests),
        places=(*own.places, *places),
        tokens=before + tokens,
        inputs=_inputs(own, later, before, tokens),
    )


def _inputs(own: Images, later: Images, before: int, tokens: int) -> Mapping[str, torch.Tensor]:
    inputs = dict(own.inputs)
    for name, value in later.inputs.items():
        if value.shape == (1, later.tokens):  # one for each token; 0 says text
            known = inputs.get(name, value[:, :0])
            known = pad(known, (0, before - known.shape[1]))
            inputs[name] = torch.cat([known, value[:, later.tokens - tokens :]], dim=1)
        else:
            inputs[name] = _stacked(inputs[name], value) if name in inputs else value
    return inputs


def _stacked(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The images of both. Processors that make all of a row's as large as the largest one fill them
    up with 0, at the right and below."""
    sizes = [max(pair) for pair in zip(one.shape[1:], other.shape[1:], strict=True)]

    def filled(value: torch.Tensor) -> torch.Tensor:
        missing = [size - own for size, own in zip(sizes, value.shape[1:], strict=True)]
        return pad(value, [each for size in reversed(missing) for each in (0, size)])

    return torch.cat([filled(one), filled(other)])
