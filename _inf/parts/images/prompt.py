"""A prompt with images as token ids: the model's own processor writes each image's tokens."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _inf.errors import ConfigError, PromptError, PromptTooLongError, error_text, shown
from _inf.parts.images.digests import digest
from _inf.types import JSON, Message, Prompt, texts_of

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from _inf.config.sections import ImageBounds
    from _inf.parts.part import Part
    from _inf.request.template import Template
    from _inf.types import Limits

    Places = Sequence[tuple[int, int]]
    # Of digests, places, the model's inputs and the number of ids.
    MakePart = Callable[[tuple[str, ...], Places, Mapping[str, Tensor], int], Part]


@dataclasses.dataclass(frozen=True)
class ImagePrompt(Prompt):
    """Messages with images, which are not yet token ids."""

    images: tuple[Image, ...] = ()
    part: MakePart | None = None  # of its row

    def check_turns(self) -> None:
        raise PromptError(
            f"prompt {self.index} has images, and its call has tools or turns, which take text "
            "only; leave out one of the two (tools=[] leaves out the config's)."
        )

    def rendered(self, template: Template | None, limits: Limits) -> Prompt:
        assert template is not None  # a backend without a tokenizer reads no images
        messages = self.messages or []
        text = template.text(messages, self.index)
        ids, inputs = _processed(template.tokenizer, text, self)
        template.check_shown(messages, text, self.index)
        if len(ids) > limits.prompt:
            raise PromptTooLongError(
                f"prompt {self.index} has {len(ids)} tokens with its images, above the limit of "
                f"{limits.prompt} (rollout.prompt_length); raise it, or make the images smaller. "
                "Prompts with images are not cut."
            )
        assert self.part is not None
        places = tuple(_runs(ids, processor_of(template.tokenizer.name_or_path)))
        part = self.part(tuple(map(digest, self.images)), places, inputs, len(ids))
        return Prompt(ids, 0, messages, index=self.index, parts=(part,))


def prompt_of(
    messages: list[Message],
    index: int,
    part: MakePart,
    bounds: ImageBounds,
) -> ImagePrompt:
    """The prompt of messages whose images are sources; they are opened in their place."""
    found: list[JSON] = []
    for position, message in enumerate(messages):
        if isinstance(message["content"], list):
            own = [part for part in message["content"] if part["type"] == "image"]
            if own and message["role"] != "user":
                raise PromptError(
                    f"prompt {index}, message {position}: a message of {message['role']} has an "
                    "image; only those of a user may."
                )
            found += own
    if len(found) > bounds.max_per_prompt:  # before one of them is decoded
        raise PromptError(
            f"prompt {index} has {len(found)} images, more than {bounds.max_per_prompt} "
            "(rollout.images.max_per_prompt)."
        )
    for one in found:
        one["image"] = one["image"].opened(bounds)
    images = tuple(one["image"] for one in found)
    return ImagePrompt([], messages=messages, index=index, images=images, part=part)


def _processed(tokenizer: Any, text: str, prompt: ImagePrompt) -> tuple[list[int], dict[str, Any]]:
    """Return the ids and the model's other inputs. Special tokens are added as by Transformers'
    `apply_chat_template` (4.57 and 5.24, `processing_utils.py`): unless the text begins with BOS.
    """
    processor = processor_of(tokenizer.name_or_path)
    _check_texts(processor, prompt)
    bos = tokenizer.bos_token
    special = bos is None or not text.startswith(bos)
    try:
        inputs = dict(
            processor(
                text=[text],
                images=[list(prompt.images)],
                return_tensors="pt",
                add_special_tokens=special,
            )
        )
    except Exception as failure:  # each processor has its own
        raise PromptError(
            f"prompt {prompt.index}: the model's processor refused its {len(prompt.images)} images "
            f"({error_text(failure)})."
        ) from failure
    ids: list[int] = inputs.pop("input_ids")[0].tolist()
    del inputs["attention_mask"]
    return ids, inputs


def _check_texts(processor: Any, prompt: ImagePrompt) -> None:
    """Refuse texts with a mark that stands for an image: there would be more marks than images."""
    marks = [vars(processor).get(name) for name in ("image_token", "boi_token")]
    for position, message in enumerate(prompt.messages or ()):
        for text in texts_of(message):
            for mark in marks:
                if isinstance(mark, str) and mark in text:
                    raise PromptError(
                        f"prompt {prompt.index}, message {position}: its text contains "
                        f"{shown(mark)}, which stands for an image; leave it out."
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


def _runs(ids: list[int], processor: Any) -> list[tuple[int, int]]:
    """The first and the last place of each run of an image's tokens."""
    image = getattr(processor, "image_token_id", None)  # a few have other names for it
    runs, place = [], 0
    for is_image, run in itertools.groupby(ids, lambda token: token == image):
        end = place + len([*run])
        if is_image:
            runs.append((place, end - 1))
        place = end
    return runs
