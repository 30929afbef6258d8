"""A prompt with images as token ids: the model's own processor writes each image's tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _inf.errors import (
    ConfigError,
    InferenceError,
    PromptError,
    PromptTooLongError,
    error_text,
    shown,
)
from _inf.parts.images.digests import digest
from _inf.types import JSON, Message, Prompt, texts_of

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from _inf.parts.images import ImageReader
    from _inf.request.template import Template
    from _inf.types import Limits, Tokenizer


READ = ("user", "tool")  # the roles whose messages may have images


@dataclasses.dataclass(frozen=True)
class ImagePrompt(Prompt):
    """Messages with images, which are not yet token ids."""

    reader: ImageReader | None = None

    def rendered(self, template: Template | None, limits: Limits) -> Prompt:
        assert template is not None  # a backend without a tokenizer reads no images
        messages = self.messages or []
        text = template.text(messages, self.index)
        where = f"prompt {self.index}"
        assert self.reader is not None
        ids, part = self.reader.tokenized(template.tokenizer, text, messages, where, first=True)
        template.check_shown(messages, text, self.index)
        if len(ids) > limits.prompt:
            raise PromptTooLongError(
                f"prompt {self.index} has {len(ids)} tokens with its images, above the limit of "
                f"{limits.prompt} (rollout.prompt_length); raise it, or make the images smaller. "
                "Prompts with images are not cut."
            )
        return Prompt(ids, 0, messages, index=self.index, parts=(part,))


def prompt_of(messages: list[Message], index: int, reader: ImageReader) -> ImagePrompt:
    """The prompt of messages whose images are sources; they are opened in their place."""
    for position, message in enumerate(messages):
        if message["role"] not in READ and image_parts([message]):
            raise PromptError(
                f"prompt {index}, message {position}: a message of {message['role']} has an "
                "image; only those of a user or a tool may."
            )
    found, most = image_parts(messages), reader.bounds.max_per_prompt
    if len(found) > most:  # before one of them is decoded
        raise PromptError(
            f"prompt {index} has {len(found)} images, more than {most} "
            "(rollout.images.max_per_prompt)."
        )
    for one in found:
        one["image"] = reader.opened(one["image"])
    return ImagePrompt([], messages=messages, index=index, reader=reader)


def image_parts(messages: Sequence[Message]) -> list[JSON]:
    """The parts of messages that are images, in order."""
    contents = (message["content"] for message in messages if isinstance(message["content"], list))
    return [part for content in contents for part in content if part["type"] == "image"]


def processed(
    tokenizer: Tokenizer, text: str, messages: Sequence[Message], where: str, *, first: bool
) -> tuple[list[int], tuple[str, ...], Sequence[tuple[int, int]], Mapping[str, Tensor]]:
    """Return the ids of a text that shows these messages, and of their images the digests, the
    places and the model's inputs. Special tokens are added where a row begins, as by Transformers'
    `apply_chat_template` (4.57 and 5.24, `processing_utils.py`): unless the text begins with BOS.
    """
    processor = processor_of(tokenizer.name_or_path)
    images: list[Image] = [part["image"] for part in image_parts(messages)]
    _check_texts(processor, messages, where)
    _check_marks(processor, text, len(images), where)
    bos = tokenizer.bos_token
    special = first and (bos is None or not text.startswith(bos))
    with refusal(PromptError, f"{where}: the model's processor refused its images"):
        inputs = dict(
            processor(
                text=[text],
                images=[images],
                return_tensors="pt",
                add_special_tokens=special,
            )
        )
    ids: list[int] = inputs.pop("input_ids")[0].tolist()
    del inputs["attention_mask"]
    return ids, tuple(map(digest, images)), tuple(places_of(ids, processor)), inputs


@contextlib.contextmanager
def refusal(kind: type[InferenceError], says: str) -> Iterator[None]:
    """Raise a processor's failure, of which each has its own, as ours."""
    try:
        yield
    except Exception as failure:
        raise kind(f"{says} ({error_text(failure)}).") from failure


def _marks(processor: object) -> list[str]:
    """The texts that stand for an image."""
    marks = [vars(processor).get(name) for name in ("image_token", "boi_token")]
    return [mark for mark in marks if isinstance(mark, str)]


def _check_texts(processor: object, messages: Sequence[Message], where: str) -> None:
    """Refuse texts with a mark that stands for an image or a video: there would be more marks than
    images."""
    video = vars(processor).get("video_token")
    marks = [*_marks(processor), *([video] if isinstance(video, str) else [])]
    for position, message in enumerate(messages):
        for text in texts_of(message):
            for mark in marks:
                if mark in text:
                    raise PromptError(
                        f"{where}, message {position}: its text contains {shown(mark)}, which "
                        "stands for an image or a video; leave it out."
                    )


def _check_marks(processor: object, text: str, images: int, where: str) -> None:
    """Refuse a text in which a template does not show all images."""
    if marks := _marks(processor):
        count = max(text.count(mark) for mark in marks)
        if count != images:
            raise PromptError(
                f"{where}: the model's chat template shows {count} of its {images} images; give "
                "another chat_template."
            )


@functools.lru_cache(maxsize=4)
def processor_of(folder: str) -> Any:
    """The processor in a model's folder."""
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(folder)
    except ImportError as failure:
        raise ConfigError(
            f"model_path: the model's processor needs another package ({error_text(failure)}); "
            'install the extra: pip install "inf-engine[images]".'
        ) from failure
    except Exception as failure:
        raise ConfigError(
            f"model_path: {folder} has no processor that reads images ({error_text(failure)})."
        ) from failure
    if not hasattr(processor, "image_processor"):
        raise ConfigError(f"model_path: the model in {folder} reads text only, and no images.")
    return processor


def has_vision(folder: str | Path) -> bool:
    """Whether the model in a folder has an encoder of images, by its config."""
    about = Path(folder) / "config.json"
    return about.is_file() and "vision_config" in json.loads(about.read_text())


@functools.lru_cache(maxsize=4)
def reads_images(folder: str) -> bool:
    """Whether the model in a folder has vision, and the processor for it."""
    with contextlib.suppress(ConfigError):
        return has_vision(folder) and processor_of(folder) is not None
    return False


def places_of(ids: Sequence[int], processor: object) -> list[tuple[int, int]]:
    """The first and the last place of each run of an image's tokens."""
    image = getattr(processor, "image_token_id", None)  # a few have other names for it
    runs, place = [], 0
    for is_image, run in itertools.groupby(ids, lambda token: token == image):
        end = place + len([*run])
        if is_image:
            runs.append((place, end - 1))
        place = end
    return runs


def images_only(ids: Sequence[int], places: Sequence[tuple[int, int]]) -> list[int]:
    """The ids with 0, text, for all but the images' own and the one before each image, which says
    that one begins. Elsewhere such tokens are no image: the model may have sampled them."""
    known = [0] * len(ids)
    for start, last in places:
        begin = max(start - 1, 0)
        known[begin : last + 1] = ids[begin : last + 1]
    return known
