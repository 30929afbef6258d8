"""Finds the parts: each folder next to this file is one; no file lists them."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import pkgutil
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from _inf import parts
from _inf.parts.part import Part, Readers

if TYPE_CHECKING:
    from _inf.config import Config

BACKENDS = ("sglang", "hf", "openai")


def _found() -> Iterator[type[Part]]:
    for module in sorted(pkgutil.iter_modules(parts.__path__), key=lambda module: module.name):
        if module.ispkg:
            folder = importlib.import_module(f"{parts.__name__}.{module.name}")
            own = (each for each in vars(folder).values() if isinstance(each, type))
            for part in own:
                if issubclass(part, Part) and part.__module__ == folder.__name__:
                    _name_feature(part, module.name)
                    yield part


def _name_feature(part: type[Part], folder: str) -> None:
    """Give the keywords of a part that not every backend has a feature, unless they name one."""
    if not all(_has(part, backend) for backend in BACKENDS):
        part.keywords = {
            name: row if row.feature else dataclasses.replace(row, feature=folder)
            for name, row in part.keywords.items()
        }


def _has(part: type[Part], backend: str) -> bool:
    module = f"{part.__module__}.{backend}"
    return backend in part.same_names or importlib.util.find_spec(module) is not None


PARTS = tuple(_found())

# What they add to rows.
ROW_FIELDS = {name: field for part in PARTS for name, field in part.row_fields.items()}
ROW_METADATA = {name: field for part in PARTS for name, field in part.row_metadata.items()}


@functools.cache
def reads(backend: str) -> Mapping[str, type[Part]]:
    """The types of a message's content that the parts of a backend read."""
    return {kind: part for part in PARTS if _has(part, backend) for kind in part.reads}


def readers(config: Config) -> Readers:
    """What reads a message's content besides text, in an engine of this config."""
    return {kind: part.reader(config) for kind, part in reads(config.rollout.name).items()}


def entries(texts: Mapping[str, str], indent: int) -> str:
    """What names mean, as a docstring has it."""
    first, others = " " * indent, " " * (indent + 4)
    wrap = textwrap.TextWrapper(
        91, initial_indent=first, subsequent_indent=others, break_on_hyphens=False
    )
    return "\n".join(wrap.fill(f"{name}: {text}") for name, text in texts.items())


def features(backend: str) -> frozenset[str]:
    """The features of the parts that a backend has."""
    return frozenset[str]().union(*(part.features() for part in PARTS if _has(part, backend)))
