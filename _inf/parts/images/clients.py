"""Images in a client's request. Only what the request itself holds is read: no client may have the
server open a file or an address."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeGuard, TypeVar

from _inf.errors import PromptError, at_fault, shown
from _inf.parts.images.reading import KINDS, Opening, Source
from _inf.types import as_sequence

if TYPE_CHECKING:
    from _inf.config.sections import ImageBounds

T = TypeVar("T")
DATA = "data:"
ONLY_DATA = 'over HTTP an image is data, "data:image/png;base64,..."'
# Pixels take much memory until the model's processor has read them, and a thread keeps for itself
# (glibc's malloc) some of what it has freed.
_thread = ThreadPoolExecutor(1, "inf-images")


def with_opened_images(
    prompts: Sequence[object], bounds: ImageBounds, then: Callable[[Sequence[object]], T]
) -> T:
    """Return `then` of the prompts of a request, with their images opened. Requests with images
    come one after another, on one thread. Raises `PromptError` with the place of an image that is
    no data URL."""

    def opened() -> T:
        request = _Request(Opening(bounds, "the request"))
        return then([*map(request.prompt, range(len(prompts)), prompts)])

    return _thread.submit(opened).result() if any(map(_has_images, prompts)) else then(prompts)


def _has_images(prompt: object) -> bool:
    messages = (each for each in as_sequence(prompt) or () if isinstance(each, Mapping))
    parts = (part for each in messages for part in as_sequence(each.get("content")) or ())
    return any(map(_is_image, parts))


def _is_image(part: object) -> TypeGuard[Mapping[str, object]]:
    return isinstance(part, Mapping) and part.get("type") in KINDS


@dataclasses.dataclass
class _Request:
    images: Opening

    def prompt(self, index: int, prompt: object) -> object:
        """Messages with opened images; any other prompt as it is."""
        if not _has_images(prompt):
            return prompt
        where, messages = f"prompt {index}, message", as_sequence(prompt) or ()
        with at_fault(index=index):
            return [self._message(each, f"{where} {n}") for n, each in enumerate(messages)]

    def _message(self, message: object, where: str) -> object:
        parts = as_sequence(message.get("content")) if isinstance(message, Mapping) else None
        if not isinstance(message, Mapping) or parts is None:
            return message
        content = [self._part(part, f"{where}: content[{n}]") for n, part in enumerate(parts)]
        return {**message, "content": content}

    def _part(self, part: object, where: str) -> object:
        if not _is_image(part):
            return part
        source = part.get(str(part["type"]))
        if isinstance(source, Mapping):
            source = source.get("url")
        if not isinstance(source, str) or not source.startswith(DATA):
            raise PromptError(f"{where}: {shown(source)} is not read: {ONLY_DATA}.")
        return {"type": "image", "image": self.images.opened(Source.of(part, where))}
