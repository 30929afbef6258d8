"""`adapter`: the LoRA adapter that answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from _inf.errors import ConfigError, did_you_mean, shown
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
    instead = " adapter_path merges one adapter when an engine starts."
    adapter: str = ""

    @classmethod
    def check_on(cls, backend: Any, params: Sequence[SamplingParams]) -> None:
        check_loaded(backend.adapters, [*map(adapter_of, params)])

    def added(self, output: RequestOutput, prompt: Prompt) -> Added:
        return Added(metadata={"adapter": self.adapter})


def check_loaded(
    known: Sequence[str], names: Sequence[str | None], keyword: str = "adapter"
) -> None:
    """Refuse adapters that are not among the known ones. names: those of a call's prompts.
    keyword: which the call has for a name."""
    if not [values.text(keyword, name) for name in names if name is not None]:
        return
    for index, name in enumerate(names):
        if name is not None and name not in known:
            loaded = f"; there are {', '.join(known)}." if known else "; load_adapter() loads one."
            hint = did_you_mean(name, known) or loaded
            same = len(set(names)) == 1
            which = "" if same else f" (prompt {index})"
            raise ConfigError(
                f"adapter: {shown(name)} is not loaded{hint}{which}",
                key="adapter",
                index=None if same else index,
            )


def adapter_of(params: SamplingParams) -> str | None:
    """The name of the adapter that answers a row; None: the model does."""
    part = params.of(Adapter)
    return part.adapter if part else None
