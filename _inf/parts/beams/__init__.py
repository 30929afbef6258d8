"""`num_beams`: beam search, as Transformers'."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from _inf.errors import ConfigError
from _inf.parts.grammars import Grammar
from _inf.parts.part import Part
from _inf.request import values
from _inf.request.keyword import NOT_IN_TURNS, Keyword

if TYPE_CHECKING:
    from _inf.types import ModelInfo, SamplingParams


@dataclasses.dataclass(frozen=True)
class Beams(Part):
    """beam: the row's rank among them; 0 is best."""

    keywords = {
        "num_beams": Keyword(
            values.count,
            "Beam search, on rollout.name hf. Default 1: none. Above 1, the `n` rows of a prompt "
            "are the best of this many beams (as Transformers); not with sampling keywords, "
            "grammars, streams or tools (docs/backends.md).",
            int,
            "1: none",
            "beams",
            per_prompt=False,
            neutral=1,
            of_tokens=True,
            in_body=False,
            refused={
                **NOT_IN_TURNS,
                "stream": "a beam is known only when it is complete; use generate()",
                "streamed chat": "a beam is known only when it is complete, and this chat "
                "streams; start inf chat --json",
            },
        )
    }
    greedy = "beams are not sampled"
    num_beams: int = 1
    beam: int = 0

    def contradictions(self, params: SamplingParams, model: ModelInfo) -> Iterable[tuple[str, str]]:
        if grammar := params.of(Grammar):
            yield "num_beams", f"beams follow no grammar; leave {next(iter(grammar.values()))} out."

    def check_samples(self, n: int) -> None:
        if self.num_beams < n:
            beams = f"{self.num_beams} beams"
            raise ConfigError.of("num_beams", f"{beams} are fewer than the n={n} rows of a prompt.")

    def of_sample(self, sample: int) -> Beams:
        return dataclasses.replace(self, beam=sample)
