"""Reads images from what a message's part holds: bytes, files, data URLs, PIL's objects."""

from __future__ import annotations

import base64
import binascii
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from _inf.errors import PromptError, error_text, shown

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_PIXELS = 2**25  # of one image, 33 million; a small file may hold many more
FORMS = (
    '{"type": "image", "image": a path, bytes or a PIL image} or {"type": "image_url", '
    '"image_url": {"url": "data:image/png;base64,..."}}'
)
DIGEST = "sha256:"  # in a file, in place of an image
KEYS = {"image": ("type", "image"), "image_url": ("type", "image_url")}


def is_digest(part: Mapping[str, object]) -> bool:
    """Whether a part of a message's content has only the digest of its image."""
    image = part.get("image")
    return isinstance(image, str) and image.startswith(DIGEST)


def image_of(
    part: Mapping[str, object], where: str, formats: tuple[str, ...] | None = None
) -> Image:
    """The image of a part of a message's content, in RGB. formats: PIL's names of those of a file
    that are read; None: all."""
    kind = str(part["type"])
    if is_digest(part):
        raise PromptError(f"{where}: only the digest of this image was kept; give the image again.")
    if unknown := [key for key in part if key not in KEYS[kind]]:
        raise PromptError(f"{where}: unknown key {shown(unknown[0])}; {FORMS}.")
    source = part.get(kind)
    if isinstance(source, Mapping):
        source = _stored(source, where) if kind == "image" else source.get("url")
    if kind == "image_url" and not str(source).startswith(("data:", "file:", "http")):
        raise PromptError(f"{where}: {shown(source)} is no URL; {FORMS}.")
    try:
        return _opened(source, where, formats)
    except PromptError:
        raise
    except Exception as failure:  # PIL's decoders raise many
        raise PromptError(f"{where}: the image cannot be read: {error_text(failure)}.") from failure


def _stored(image: Mapping[str, object], where: str) -> object:
    """An image in a table: `{"bytes": ..., "path": ...}` is that of Hugging Face's datasets, whose
    path is the name that its bytes had; `{"image": ...}` is verl's."""
    kept = {key: value for key, value in image.items() if value is not None}
    if len(kept) == 2 and "bytes" in kept:
        kept.pop("path", None)
    match kept:
        case {"bytes": source} | {"path": source} | {"image": source} if len(kept) == 1:
            return source
    raise PromptError(
        f'{where}: an image of a table is {{"bytes": ...}}, {{"path": ...}} or {{"image": ...}}, '
        f"and not a mapping with {shown(sorted(kept))}."
    )


def _opened(source: object, where: str, formats: tuple[str, ...] | None) -> Image:
    from PIL import Image

    if isinstance(source, Image.Image):
        image = source
    else:
        image = Image.open(_file(source, where), formats=formats)
    if image.width * image.height > MOST_PIXELS:
        raise PromptError(
            f"{where}: the image has {image.width} x {image.height} pixels, more than "
            f"{MOST_PIXELS:,}; make it smaller."
        )
    if image.mode in ("RGBA", "LA", "P"):  # what is transparent is white, not whatever is below
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _file(source: object, where: str) -> Any:
    if isinstance(source, bytes | bytearray):
        return io.BytesIO(source)
    if isinstance(source, os.PathLike):
        return _existing(Path(source), where)
    if not isinstance(source, str) or not source:
        raise PromptError(f"{where}: {shown(source)} is no image; {FORMS}.")
    scheme = urlsplit(source).scheme if ":" in source[:8] else ""
    if scheme == "data":
        head, comma, data = source.partition(",")
        if not comma or not head.endswith(";base64"):
            raise PromptError(f"{where}: the data URL is not in base64.")
        try:
            return io.BytesIO(base64.b64decode(data, validate=True))
        except binascii.Error as failure:
            raise PromptError(f"{where}: the data URL is not in base64: {failure}.") from None
    if scheme in ("http", "https"):
        raise PromptError(
            f"{where}: {shown(source)} is on another machine, and nothing is fetched from there; "
            "give a file, or its bytes."
        )
    return _existing(Path(unquote(urlsplit(source).path) if scheme == "file" else source), where)


def _existing(path: Path, where: str) -> Path:
    if not path.is_file():  # opening a pipe would wait for its writer
        raise PromptError(f"{where}: there is no file {path}.")
    return path
