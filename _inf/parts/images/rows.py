"""verl's rows with images: marks in the texts of their messages, and the images in a column.

verl 0.6.1 (`utils/dataset/rl_dataset.py`, `_build_messages`) splits the texts of a row that has the
column at its marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from _inf.errors import ConfigError, shown
from _inf.parts.found import BACKENDS, reads
from _inf.types import JSON, as_sequence

MARK, COLUMN, VIDEOS = "<image>", "images", "videos"  # verl's


def with_images(prompt: object, row: Mapping[str, object], where: str) -> object:
    """A row's prompt with the images of its column in the places of their marks. A row without the
    column has none: there, a mark is text. `where` begins an error."""
    if row.get(VIDEOS):
        raise ConfigError(f"{where}: {VIDEOS}: no backend reads videos; leave the row out.")
    if COLUMN not in row:
        return prompt
    images = as_sequence([] if row[COLUMN] is None else row[COLUMN])
    if images is None:
        raise ConfigError(f"{where}: {COLUMN} must be a list of images, not {shown(row[COLUMN])}.")
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    listed = as_sequence(messages) or ()
    marks = sum(_text(message).count(MARK) for message in listed)
    if marks != len(images):
        raise ConfigError(
            f"{where}: its prompt has {marks} {MARK} and its column {COLUMN} has {len(images)}; "
            "each image needs one mark, in the text of a message."
        )
    rest = iter(images)
    return [_split(message, rest) for message in listed] if images else prompt


def check_backend(backend: str, row: Mapping[str, object], where: str) -> None:
    """Refuse a row with images for a backend that reads none."""
    if row.get(COLUMN) and "image" not in reads(backend):
        others = " or ".join(name for name in BACKENDS if "image" in reads(name))
        raise ConfigError.of(
            "rollout.name",
            f"{where} has {COLUMN}, which the backend {backend} does not read; {others} does",
        )


def _text(message: object) -> str:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else ""


def _split(message: object, images: Iterator[object]) -> object:
    """The message with the next images in place of its marks."""
    if not isinstance(message, Mapping) or MARK not in _text(message):
        return message
    content: list[JSON] = []
    for place, text in enumerate(_text(message).split(MARK)):
        content += [{"type": "image", "image": next(images)}] if place else []
        content += [{"type": "text", "text": text}] if text else []
    return {**message, "content": content}
