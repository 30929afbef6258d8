"""`Keyword`, a row of the table of `generate`'s keywords (`keywords.py`)."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any, get_args, get_origin


@dataclasses.dataclass(frozen=True)
class Keyword:
    """A keyword's row. (Its type and its documentation, whose first sentence is the option's help,
    are in `GenerateParams`.)

    check: takes the name, a value and, with of_tokens, the vocabulary's size; returns plain Python
    types or raises `ConfigError`. kind: the type in a request's body (unless not in_body), and of
    the option, which has the last of a union; None: in neither. default: the option's, as the help
    shows it; None: no option. feature: what a backend must support. filters: whether it excludes
    tokens from being sampled. of_chats: whether only messages have it. sglang: its name in
    SGLang's `SamplingParams`; "": it has none. `combinations` has the kinds of call that refuse it.
    """

    check: Callable[..., Any]
    kind: Any = None
    default: str | None = None
    feature: str = ""
    of_tokens: bool = False
    filters: bool = False
    in_body: bool = True
    of_chats: bool = False
    sglang: str = ""

    @property
    def value_type(self) -> Any:
        """The type of an option's values: the last of a union."""
        return get_args(self.kind)[-1] if isinstance(self.kind, types.UnionType) else self.kind

    @property
    def is_list(self) -> bool:
        """Whether one prompt's value is a list, and values per prompt are a list of lists."""
        return get_origin(self.value_type) is list
