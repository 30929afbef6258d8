"""What is kept of an image: the digest of its pixels, and its size."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from _inf.errors import PromptError
from _inf.parts.images.reading import DIGEST, image_of, is_digest
from _inf.types import JSON

if TYPE_CHECKING:
    from PIL.Image import Image


def digest(image: Image) -> str:
    """The SHA-256 of an image's pixels, which are in RGB, and of its size."""
    size = f"{image.width}x{image.height}:".encode()
    return hashlib.sha256(size + image.tobytes()).hexdigest()


def kept_of(part: Mapping[str, object]) -> JSON:
    """`{"type": "image", "image": "sha256:...", "size": [width, height]}` for an image in a
    message's content; `unreadable` in place of the digest of one that cannot be read."""
    if is_digest(part):
        return dict(part)
    try:
        image = image_of(part, "")
    except PromptError:
        return {"type": "image", "image": "unreadable"}
    return {"type": "image", "image": f"{DIGEST}{digest(image)}", "size": [*image.size]}
