"""Images in a message's content, as OpenAI's API and verl's rows have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from _inf.parts.part import NOTHING, Added, Field, Part, Record

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor
    from verl import DataProto

    from _inf.config import Config
    from _inf.config.sections import ImageBounds
    from _inf.parts.images.reading import Source
    from _inf.types import (
        JSON,
        Message,
        ModelInfo,
        Prompt,
        RequestOutput,
        SamplingParams,
        Tokenizer,
    )


@dataclasses.dataclass(frozen=True)
class Shown(Record):
    """The digests of all images of a row. again: what they ask for if the row goes on."""

    digests: tuple[str, ...]
    again: Images | None = None

    def added(self) -> Added:
        return Added({"images": list(self.digests)}, again=self.again)


@dataclasses.dataclass(frozen=True)
class Images(Part):
    """The images of one request. digests: the SHA-256 of each one's pixels. inputs: what the
    model's processor makes of them, such as `pixel_values`. places: the first and last of each run
    of their tokens in the request's ids. tokens: how many of these ids have inputs; those after
    them are text."""

    reads = ("image", "image_url")
    row_fields = {
        "images": Field(
            "list[str]",
            "the SHA-256 of the pixels of each image of the row, in order.",
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
            translation.check(backend.rollout.model_config.hf_config)

    @classmethod
    def in_every_batch(cls, tokenizer: Tokenizer) -> bool:
        from _inf.parts.images.prompt import reads_images

        return reads_images(tokenizer.name_or_path)

    @classmethod
    def add_to_batch(
        cls, batch: DataProto, asked: Sequence[Images | None], tokenizer: Tokenizer
    ) -> None:
        from _inf.parts.images.batches import add_columns

        add_columns(batch, asked, tokenizer.name_or_path)

    def followed_by(self, later: Images, before: int, tokens: int) -> Images:
        from _inf.parts.images.turns import joined

        return joined(self, later, before, tokens)

    def in_row(self, *, paused: bool) -> Shown:
        return Shown(self.digests, self if paused else None)  # its inputs are large

    def added(self, output: RequestOutput, prompt: Prompt) -> Added:
        if output.of(Shown):
            return NOTHING
        paused = output.finish_reason == "abort" and output.transcript is None
        return self.in_row(paused=paused).added()


@dataclasses.dataclass(frozen=True)
class ImageReader:
    """Reads images within the bounds of `rollout.images`."""

    bounds: ImageBounds

    def content_of(self, part: Mapping[str, object], where: str) -> JSON:
        from _inf.parts.images.reading import Source

        return {"type": "image", "image": Source.of(part, where)}

    def opened(self, source: Source) -> Image:
        return source.opened(self.bounds)

    def prompt_of(self, messages: list[Message], index: int) -> Prompt:
        from _inf.parts.images.prompt import prompt_of

        return prompt_of(messages, index, self)

    def of_tool(self, content: Sequence[JSON], model: ModelInfo) -> list[JSON]:
        from _inf.parts.images.turns import of_tool

        return of_tool(content, model, self.bounds)

    def tokenized(
        self,
        tokenizer: Tokenizer,
        text: str,
        messages: Sequence[Message],
        where: str,
        *,
        first: bool,
    ) -> tuple[list[int], Images]:
        from _inf.parts.images.prompt import processed

        ids, digests, places, inputs = processed(tokenizer, text, messages, where, first=first)
        return ids, Images(digests, places, inputs, len(ids))
