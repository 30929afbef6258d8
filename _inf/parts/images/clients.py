"""Images in a client's request. Only what the request itself holds is read: no client may have the
server open a file or an address."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from _inf.errors import PromptError, shown
from _inf.parts.found import readers
from _inf.parts.images import ImageReader
from _inf.parts.images.reading import KINDS, Opening, Source
from _inf.types import JSON, as_sequence

if TYPE_CHECKING:
    from PIL.Image import Image

    from _inf.config import Config
    from _inf.parts.part import Readers

T = TypeVar("T")
DATA = "data:"
ONLY_DATA = 'over HTTP an image is data, "data:image/png;base64,..."'
# Pixels take much memory until the model's processor has read them, and a thread keeps for itself
# (glibc's malloc) some of what it has freed.
_thread = ThreadPoolExecutor(1, "inf-images")


@dataclasses.dataclass(frozen=True)
class ClientReader(ImageReader):
    """Reads the images of one request."""

    opening: Opening

    def content_of(self, part: Mapping[str, object], where: str) -> JSON:
        source = Source.of(part, where)
        if not isinstance(source.value, str) or not source.value.startswith(DATA):
            raise PromptError(f"{where}: {shown(source.value)} is not read: {ONLY_DATA}.")
        return {"type": "image", "image": source}

    def opened(self, source: Source) -> Image:
        return self.opening.opened(source)


def of_request(prompts: Sequence[object], config: Config, then: Callable[[Readers], T]) -> T:
    """Return `then` of what reads the messages of a request with these prompts. Requests with
    images come one after another, on one thread."""
    known = readers(config)
    if not any(map(_has_images, prompts)):
        return then(known)
    bounds = config.rollout.images
    own = ClientReader(bounds, Opening(bounds, "the request"))
    return _thread.submit(then, {**known, **dict.fromkeys(known.keys() & KINDS, own)}).result()


def _has_images(prompt: object) -> bool:
    messages = (each for each in as_sequence(prompt) or () if isinstance(each, Mapping))
    parts = (part for each in messages for part in as_sequence(each.get("content")) or ())
    return any(isinstance(part, Mapping) and part.get("type") in KINDS for part in parts)
