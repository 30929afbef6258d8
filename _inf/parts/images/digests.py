"""What files keep of messages with images: the digest and the size of each one, and no pixels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from _inf.errors import PromptError
from _inf.parts.images.reading import DIGEST, KEYS, image_of, is_digest
from _inf.types import JSON, as_sequence

if TYPE_CHECKING:
    from PIL.Image import Image


def digest(image: Image) -> str:
    """The SHA-256 of an image's pixels, which are in RGB, and of its size."""
    size = f"{image.width}x{image.height}:".encode()
    return hashlib.sha256(size + image.tobytes()).hexdigest()


def without_pixels(prompt: object) -> object:
    """A prompt with `{"type": "image", "image": "sha256:...", "size": [width, height]}` for each
    image of its messages; `unreadable` for one that cannot be read. Anything else stays as it is.
    """
    messages = as_sequence(prompt)
    return prompt if messages is None else [_message(message) for message in messages]


def _message(message: object) -> object:
    parts = as_sequence(message.get("content")) if isinstance(message, Mapping) else None
    if not isinstance(message, Mapping) or parts is None:
        return message
    return {**message, "content": [_part(part) for part in parts]}


def _part(part: object) -> object:
    if not isinstance(part, Mapping) or part.get("type") not in KEYS:
        return part
    kept: JSON = {"type": "image", "image": "unreadable"}
    try:
        image = image_of(part, "")
    except PromptError:
        return part if is_digest(part) else kept
    return {**kept, "image": f"{DIGEST}{digest(image)}", "size": [*image.size]}
