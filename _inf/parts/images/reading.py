"""Reads images from what a message's part holds: bytes, files, URLs, PIL's objects."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import io
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from _inf.errors import PromptError, error_text, shown
from _inf.request.messages import CACHE

if TYPE_CHECKING:
    from PIL.Image import Image

    from _inf.config.sections import ImageBounds

FORMS = (
    '{"type": "image", "image": a path, bytes or a PIL image} or {"type": "image_url", '
    '"image_url": {"url": "data:image/png;base64,..."}}'
)
# PIL's decoders; others start programs (EPS), or are of no photo.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
OF_OTHERS = ("PNG", "JPEG", "GIF", "WEBP")  # what OpenAI's and Anthropic's APIs read
REMOTE = ("http", "https")
URLS = ("data", "file", *REMOTE)
DIGEST = "sha256:"  # in a file, in place of an image
KINDS = ("image", "image_url")  # the types of a part, which has its image under that name
KEYS = ("type", CACHE)


def is_digest(part: Mapping[str, object]) -> bool:
    """Whether a part of a message's content has only the digest of its image."""
    image = part.get("image")
    return isinstance(image, str) and image.startswith(DIGEST)


@dataclasses.dataclass(frozen=True)
class Source:
    """An image that is not opened yet. value: bytes, a path, a URL or a PIL image. where: begins
    an error."""

    value: object = dataclasses.field(repr=False)
    where: str

    @classmethod
    def of(cls, part: Mapping[str, object], where: str) -> Source:
        """That of a part of a message's content."""
        kind = str(part["type"])
        if is_digest(part):
            raise PromptError(
                f"{where}: only the digest of this image was kept; give the image again."
            )
        given = [key for key, value in part.items() if value is not None]
        if unknown := [key for key in given if key not in (*KEYS, kind)]:
            raise PromptError(f"{where}: unknown key {shown(unknown[0])}; {FORMS}.")
        value = part.get(kind)
        if isinstance(value, Mapping):
            value = _stored(value, where) if kind == "image" else value.get("url")
        if kind == "image_url" and scheme_of(value) not in URLS:
            raise PromptError(f"{where}: {shown(value)} is no URL; {FORMS}.")
        return cls(value, where)

    @property
    def remote(self) -> bool:
        """Whether it is on another machine."""
        return scheme_of(self.value) in REMOTE

    def opened(self, bounds: ImageBounds, formats: Sequence[str] = FORMATS) -> Image:
        """The image in RGB. formats: PIL's names of those that are read."""
        from PIL import UnidentifiedImageError

        try:
            return _opened(self, bounds, formats)
        except PromptError:
            raise
        except UnidentifiedImageError:
            raise PromptError(
                f"{self.where}: the image cannot be read: it is none of {', '.join(formats)}."
            ) from None
        except Exception as failure:  # PIL's decoders raise many
            raise PromptError(
                f"{self.where}: the image cannot be read: {error_text(failure)}."
            ) from failure


class Opening:
    """Opens the images of someone who may not have the machine work without bound: all of them
    together may have as many pixels as one. whose: "the request" or another."""

    def __init__(self, bounds: ImageBounds, whose: str) -> None:
        self._bounds, self._whose = bounds, whose
        self._images = self._pixels = 0

    def opened(self, source: Source) -> Image:
        self._images += 1
        if self._images > self._bounds.max_per_prompt:  # before it is decoded
            raise PromptError(
                f"{source.where}: {self._whose} has more than {self._bounds.max_per_prompt} images "
                "(rollout.images.max_per_prompt)."
            )
        image = source.opened(self._bounds, OF_OTHERS)
        self._pixels += image.width * image.height
        if self._pixels > self._bounds.max_pixels:
            raise PromptError(
                f"{source.where}: up to this one, the images of {self._whose} have "
                f"{self._pixels:,} pixels, more than {self._bounds.max_pixels:,} "
                "(rollout.images.max_pixels); make them smaller."
            )
        return image


def scheme_of(value: object) -> str:
    """The scheme of a URL; of any other value "", or a letter that is none."""
    scheme, colon, _ = value[:8].partition(":") if isinstance(value, str) else ("", "", "")
    return scheme.lower() if colon else ""


def address(url: str) -> str:
    """A URL without its user, password and query."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{re.split('[?#]', rest)[0].rpartition('@')[2]}"


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


def _opened(source: Source, bounds: ImageBounds, formats: Sequence[str]) -> Image:
    from PIL import Image, ImageOps

    image, where = source.value, source.where
    if not isinstance(image, Image.Image):
        image = Image.open(_file(image, where, bounds), formats=[*formats])
    if image.width * image.height > bounds.max_pixels:
        raise PromptError(
            f"{where}: the image has {image.width} x {image.height} pixels, more than "
            f"{bounds.max_pixels:,} (rollout.images.max_pixels); make it smaller."
        )
    if not image.width * image.height:
        raise PromptError(f"{where}: the image has {image.width} x {image.height} pixels.")
    if image.mode.startswith(("I", "F")):  # PIL would cut the numbers to 255
        raise PromptError(
            f"{where}: each pixel of the image is a number of more than 8 bits (PIL's mode "
            f"{image.mode}); scale it to 8 bits."
        )
    image = ImageOps.exif_transpose(image)  # upright, as Transformers' `load_image`
    if image.has_transparency_data:  # what is transparent is white, not whatever is below
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def _file(source: object, where: str, bounds: ImageBounds) -> io.BytesIO | Path:
    if isinstance(source, bytes | bytearray):
        return io.BytesIO(source)
    if isinstance(source, os.PathLike):
        return _existing(Path(source), where)
    if not isinstance(source, str) or not source:
        raise PromptError(f"{where}: {shown(source)} is no image; {FORMS}.")
    scheme = scheme_of(source)
    if scheme == "data":
        head, comma, data = source.partition(",")
        if not comma or not head.endswith(";base64"):
            raise PromptError(f"{where}: the data URL is not in base64.")
        try:
            return io.BytesIO(base64.b64decode(data, validate=True))
        except binascii.Error as failure:
            raise PromptError(f"{where}: the data URL is not in base64: {failure}.") from None
    if scheme in REMOTE:
        from _inf.parts.images.remote import fetched

        place = f"{where}: {shown(address(source))}"
        if bounds.allow_remote:
            return io.BytesIO(fetched(source, place))
        raise PromptError(
            f"{place} is on another machine, and nothing is fetched from "
            "there; give a file, or its bytes, or set rollout.images.allow_remote: true."
        )
    if scheme != "file":
        return _existing(Path(source), where)
    url = urlsplit(source)
    if url.netloc not in ("", "localhost"):
        raise PromptError(f"{where}: {shown(source)} names a file of another machine.")
    return _existing(Path(unquote(url.path)), where)


def _existing(path: Path, where: str) -> Path:
    if not path.is_file():  # opening a pipe would wait for its writer
        raise PromptError(f"{where}: there is no file {path}.")
    return path
