"""`Keyword`, a row of the table of `generate`'s keywords: those of every call (`keywords.py`), and
those of the parts (`_inf/parts`)."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias, get_args, get_origin

from _inf.errors import at_fault
from _inf.request.values import MAX_INT32

# turns: whose rows may have several answers. loop request: what the code of an agent loop itself
# asks for. continued row: with a row as a prompt.
CallKind: TypeAlias = Literal[
    "one turn", "turns", "agent loop", "loop request", "stream", "continued row"
]
# text chat: one that shows text. streamed chat: one that shows it while it is generated.
ChatKind: TypeAlias = Literal["chat", "text chat", "streamed chat"]
Refused: TypeAlias = "Mapping[CallKind | ChatKind, str]"
# What rows with turns, and rows that are continued, have no room for.
NOT_IN_TURNS: Refused = {
    "turns": "",
    "loop request": "",
    "continued row": "a row that is continued cannot have it; leave it out",
}
ONLY_AS_JSON: Refused = {"text chat": "only inf chat --json shows it"}
# What only a whole answer shows.
LATER: Refused = {
    **ONLY_AS_JSON,
    "stream": "stream() does not give it; use generate()",
}


@dataclasses.dataclass(frozen=True)
class Keyword:
    """A keyword's row.

    check: takes the name, a value and, with of_tokens, the vocabulary's size; returns plain Python
    types or raises `ConfigError`. help: its documentation; the first sentence is the option's help.
    kind: the type in a request's body (unless not in_body), and of the option, which has the last
    of a union; None: in neither. typed: the type of one value for type checkers, by default that of
    `kind`. per_prompt: whether a list gives each prompt its own value. neutral: the value that
    changes nothing, besides None. default: the option's, as the help shows it; None: no option.
    feature: what a backend must support for it; "": every backend does, or, of a part that some
    backend lacks, the name of the part's folder. filters: whether it
    excludes tokens from being sampled. of_chats: whether only messages have it. sglang: its name in
    SGLang's `SamplingParams`; "": it has none. refused: the kinds of call that cannot have it, and
    why, or "" where the caller of `refuse` says it.
    """

    check: Callable[..., object]
    help: str
    kind: Any = None
    default: str | None = None
    feature: str = ""
    typed: str = ""
    per_prompt: bool = True
    neutral: object = None
    of_tokens: bool = False
    filters: bool = False
    in_body: bool = True
    of_chats: bool = False
    sglang: str = ""
    refused: Refused = dataclasses.field(default_factory=dict)

    @property
    def value_type(self) -> Any:
        """The type of an option's values: the last of a union."""
        return get_args(self.kind)[-1] if isinstance(self.kind, types.UnionType) else self.kind

    @property
    def is_list(self) -> bool:
        """Whether one prompt's value is a list, and values per prompt are a list of lists."""
        return get_origin(self.value_type) is list

    @property
    def first_sentence(self) -> str:
        return self.help.partition(". ")[0].removesuffix(".") + "."

    @property
    def annotation(self) -> str:
        """The type of the argument, for type checkers."""
        plain = isinstance(self.kind, type) and not get_args(self.kind)
        one = self.typed or (self.kind.__name__ if plain else str(self.kind))
        for name, wider in {"list[": "Sequence[", "dict[": "Mapping[", "typing.": ""}.items():
            one = one.replace(name, wider)
        return f"{one} | Sequence[{one} | None] | None" if self.per_prompt else f"{one} | None"

    def checked(self, name: str, value: object, vocabulary: int = MAX_INT32) -> Any:
        """Return a value in plain Python types, or raise `ConfigError` about the keyword `name`."""
        more = {"vocabulary": vocabulary} if self.of_tokens else {}
        with at_fault(key=name):
            return self.check(name, value, **more)

    def asks(self, value: object) -> bool:
        """Whether a value changes anything."""
        return value is not None and value != self.neutral
