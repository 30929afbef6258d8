"""Images in a client's request. Only what the request itself holds is read: no client may have the
server open a file or an address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from _inf.errors import PromptError, at_fault, shown
from _inf.parts.images.reading import KINDS, Source
from _inf.types import as_sequence

if TYPE_CHECKING:
    from _inf.config.sections import ImageBounds

DATA = "data:"
ONLY_DATA = 'over HTTP an image is data, "data:image/png;base64,..."'
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


class Opening:
    """Opens the images of one request, which may have as many pixels together as one image. Raises
    `PromptError` with the place of one that is no data URL."""

    def __init__(self, bounds: ImageBounds) -> None:
        self._bounds, self._images, self._pixels = bounds, 0, 0

    def prompt(self, prompt: object, where: str) -> object:
        """Messages with opened images; any other prompt as it is."""
        messages = as_sequence(prompt)
        if messages is None or not any(isinstance(message, Mapping) for message in messages):
            return prompt
        return [self._message(each, f"{where}, message {n}") for n, each in enumerate(messages)]

    def _message(self, message: object, where: str) -> object:
        parts = as_sequence(message.get("content")) if isinstance(message, Mapping) else None
        if not isinstance(message, Mapping) or parts is None:
            return message
        content = [self._part(part, f"{where}: content[{n}]") for n, part in enumerate(parts)]
        return {**message, "content": content}

    def _part(self, part: object, where: str) -> object:
        if not isinstance(part, Mapping) or part.get("type") not in KINDS:
            return part
        source = part.get(part["type"])
        if isinstance(source, Mapping):
            source = source.get("url")
        if not isinstance(source, str) or not source.startswith(DATA):
            raise PromptError(f"{where}: {shown(source)} is not read: {ONLY_DATA}.")
        self._images += 1
        if self._images > self._bounds.max_per_prompt:
            raise PromptError(
                f"{where}: the request has more than {self._bounds.max_per_prompt} images "
                "(rollout.images.max_per_prompt)."
            )
        image = Source.of(part, where).opened(self._bounds, FORMATS)
        self._pixels += image.width * image.height
        if self._pixels > self._bounds.max_pixels:
            raise PromptError(
                f"{where}: up to this one, the request's images have {self._pixels:,} pixels, more "
                f"than {self._bounds.max_pixels:,} (rollout.images.max_pixels); make them smaller."
            )
        return {"type": "image", "image": image}


def with_opened_images(prompts: Sequence[object], bounds: ImageBounds) -> list[object]:
    """The prompts of a request with their images opened."""
    opening, opened = Opening(bounds), []
    for index, prompt in enumerate(prompts):
        with at_fault(index=index):
            opened.append(opening.prompt(prompt, f"prompt {index}"))
    return opened
