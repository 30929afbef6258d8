"""`json_schema` and `regex`: a grammar that makes the whole answer, by llguidance."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from _inf.parts.part import Part
from _inf.request.keyword import NOT_IN_TURNS, Keyword

if TYPE_CHECKING:
    from _inf.types import ModelInfo, SamplingParams


def _check(function: str) -> Callable[[str, object], object]:
    """A check of `schemas.py`, whose libraries only a call with a grammar imports."""
    return lambda _, value: pkgutil.resolve_name(f"{__name__}.schemas:{function}")(value)


@dataclasses.dataclass(frozen=True)
class Grammar(Part):
    """json_schema: as JSON text."""

    same_names = {"sglang"}
    keywords = {
        "json_schema": Keyword(
            _check("json_schema_text"),
            "The JSON schema of the answer. A dict or JSON text (docs/grammars.md).",
            dict[str, object] | str,
            "",
            "json_schema",
            typed="Mapping[str, object] | str",
            sglang="json_schema",
            refused=NOT_IN_TURNS,
        ),
        "regex": Keyword(
            _check("regex_text"),
            "What the whole answer must match. Not with json_schema (docs/grammars.md).",
            str,
            "",
            "regex",
            sglang="regex",
            refused=NOT_IN_TURNS,
        ),
    }
    adjusts = True
    json_schema: str | None = None
    regex: str | None = None

    def contradictions(self, params: SamplingParams, model: ModelInfo) -> Iterable[tuple[str, str]]:
        if self.json_schema is not None and self.regex is not None:
            yield "regex", "an answer can follow one grammar only, and json_schema is set too."


def is_constrained(params: SamplingParams) -> bool:
    """Whether a grammar makes the answer."""
    return params.of(Grammar) is not None
