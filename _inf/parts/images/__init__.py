"""Images in a message's content, as OpenAI's API and verl's rows have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _inf.parts.part import Added, Field, Part

if TYPE_CHECKING:
    from torch import Tensor

    from _inf.config import Config
    from _inf.config.sections import ImageBounds
    from _inf.types import JSON, Message, Prompt, RequestOutput, SamplingParams


@dataclasses.dataclass(frozen=True)
class Images(Part):
    """The images of one prompt. digests: the SHA-256 of each one's pixels. inputs: what the model's
    processor makes of them, such as `pixel_values`. places: the first and last of each run of their
    tokens in the prompt. tokens: how many ids the prompt has."""

    reads = ("image", "image_url")
    row_fields = {
        "images": Field(
            "list[str]",
            "the SHA-256 of the pixels of each image of the prompt, in order.",
            in_rollouts=True,
        )
    }
    digests: tuple[str, ...] = ()
    places: Sequence[tuple[int, int]] = ()
    inputs: Mapping[str, Tensor] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )
    tokens: int = 0

    @classmethod
    def reader(cls, config: Config) -> ImageReader:
        return ImageReader(config.rollout.images)

    @classmethod
    def kept_of(cls, part: Mapping[str, object]) -> JSON:
        from _inf.parts.images.digests import kept_of

        return kept_of(part)

    @classmethod
    def check_on(cls, backend: Any, params: Sequence[SamplingParams]) -> None:
        if backend.name == "sglang":
            translation: Any = cls.on("sglang", object)
            translation.check(backend.rollout.model_config.hf_config, params)

    def added(self, output: RequestOutput, prompt: Prompt) -> Added:
        return Added({"images": list(self.digests)})


@dataclasses.dataclass(frozen=True)
class ImageReader:
    """Reads images within the bounds of `rollout.images`."""

    bounds: ImageBounds

    def content_of(self, part: Mapping[str, object], where: str) -> JSON:
        from _inf.parts.images.reading import Source

        return {"type": "image", "image": Source.of(part, where)}

    def prompt_of(self, messages: list[Message], index: int) -> Prompt:
        from _inf.parts.images.prompt import prompt_of

        return prompt_of(messages, index, Images, self.bounds)
