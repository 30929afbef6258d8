"""What is kept of an image: the digest of its pixels, and its size."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from _inf.config.sections import MOST_PIXELS, ImageBounds
from _inf.errors import PromptError
from _inf.parts.images.reading import DIGEST, Source, address, is_digest
from _inf.types import JSON

if TYPE_CHECKING:
    from PIL.Image import Image


ANY = ImageBounds(max_pixels=MOST_PIXELS)


def digest(image: Image) -> str:
    """The SHA-256 of an image's pixels, which are in RGB, and of its size."""
    size = f"{image.width}x{image.height}:".encode()
    return hashlib.sha256(size + image.tobytes()).hexdigest()


def kept_of(part: Mapping[str, object]) -> JSON:
    """`{"type": "image", "image": "sha256:...", "size": [width, height]}` for an image in a
    message's content; in place of the digest, `unreadable` for one that cannot be read, and the
    address of one on another machine, which is not fetched again."""
    if is_digest(part):
        return dict(part)
    try:
        source = Source.of(part, "")
        if source.remote:
            return {"type": "image", "image": address(str(source.value))}
        image = source.opened(ANY)
    except PromptError:
        return {"type": "image", "image": "unreadable"}
    return {"type": "image", "image": f"{DIGEST}{digest(image)}", "size": [*image.size]}
