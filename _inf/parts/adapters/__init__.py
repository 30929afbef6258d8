"""`adapter`: the LoRA adapter that answers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from _inf.parts.part import Added, Field, Part
from _inf.request import values
from _inf.request.keyword import Keyword

if TYPE_CHECKING:
    from _inf.types import Prompt, RequestOutput, SamplingParams


@dataclasses.dataclass(frozen=True)
class Adapter(Part):
    same_names = {"hf"}
    keywords = {
        "adapter": Keyword(
            values.text,
            "The LoRA adapter that answers. A name in `engine.adapters` (docs/adapters.md).",
            feature="adapters",
            typed="str",
            refused={"chat": "a chat loads no adapters; set adapter_path, or leave it out"},
        )
    }
    row_metadata = {"adapter": Field("str", "only with an adapter: its name.")}
    adapter: str = ""

    def added(self, output: RequestOutput, prompt: Prompt) -> Added:
        return Added(metadata={"adapter": self.adapter})


def adapter_of(params: SamplingParams) -> str | None:
    """The name of the adapter that answers a row; None: the model does."""
    part = params.of(Adapter)
    return part.adapter if part else None
