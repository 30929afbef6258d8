"""`Translation`: what a part does to a row while Transformers computes it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

import torch

from _inf.parts.part import Part, Record
from _inf.types import ModelInfo, Request

PartT = TypeVar("PartT", bound=Part)


Inputs: TypeAlias = Mapping[str, torch.Tensor]
NO_INPUTS: Inputs = MappingProxyType({})


class Translation(Generic[PartT]):
    """A part's `hf.py` has a subclass of this name; a row has an object of it.

    ends: tokens that end the row, besides its stop ids. masks: whether `adjust` may leave tokens
    that end an answer alone, also before min_tokens. prompt_key: equal for prompts with equal
    `inputs`.
    """

    ends: Collection[int] = ()
    masks: bool = False
    prompt_key: object = None

    def __init__(self, part: PartT, request: Request, model: ModelInfo) -> None:
        self.part, self.request, self.model = part, request, model

    @classmethod
    def prepare(cls, part: PartT, model: ModelInfo) -> None:
        """Do what takes long on the caller's thread, so that no other call waits for it."""

    @classmethod
    def inputs(cls, part: PartT, tokens: int) -> Inputs:
        """What the model gets besides the ids of a row that has so many."""
        return NO_INPUTS

    def adjust(self, scores: torch.Tensor, ids: Sequence[int]) -> None:
        """Change the logits of the next token, in place. ids: the answer so far."""

    def forced(self, ids: Sequence[int]) -> int | None:
        """The token that must come next; None: any may."""
        return None

    def drawing(self, probs: torch.Tensor) -> None:
        """Take the probabilities of the next token after the filters; only of sampled rows."""

    def chosen(self, token: int, logprob: float, logprobs: torch.Tensor) -> None:
        """Take the next token and its log prob; logprobs: of the whole vocabulary."""

    def ended(self, ids: Sequence[int]) -> str | None:
        """The finish reason if the answer ends here by the part."""
        return None

    def record(self, ids: Sequence[int], *, whole: bool) -> Record | None:
        """The part's record of an answer, or of one so far."""
        return None


def inputs_of(parts: Iterable[Part], tokens: int) -> dict[str, torch.Tensor]:
    """What the model gets besides so many ids of a row with these parts."""
    inputs = [translation_of(part).inputs(part, tokens) for part in parts]
    return {name: value for each in inputs for name, value in each.items()}


def translation_of(part: Part) -> type[Translation[Any]]:
    kind: type[Translation[Any]] = part.on("hf", Translation)
    return kind
