"""Checks of `generate`'s keywords, each of one value: plain Python values, or a `ConfigError`."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence

from _inf.errors import ConfigError, check_unicode, did_you_mean, shown
from _inf.types import T, python_value

MAX_INT32 = 2**31 - 1
ENGINES_OWN = "the engine sets it itself."
# Variables of a chat template that are set otherwise.
TEMPLATE_OWN = {
    **dict.fromkeys(("conversation", "tools", "tokenize", "add_generation_prompt"), ENGINES_OWN),
    **dict.fromkeys(("return_tensors", "return_dict"), ENGINES_OWN),
    "chat_template": "a template is generate()'s own keyword chat_template, which no request has.",
    "continue_final_message": "it is a keyword itself; set it outside of chat_template_kwargs.",
}
# verl's keyword arguments for each tool of a row.
TOOL_KWARGS = ("create_kwargs", "execute_kwargs", "calc_reward_kwargs", "release_kwargs")


def typed(name: str, value: object, kind: type[T] | tuple[type[T], ...], what: str) -> T:
    """Return the value if it is of a kind, which a message calls `what`."""
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise ConfigError.of(name, f"{shown(value)} is not {what}.")
    return value


def number(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
) -> float:
    try:
        real = float(typed(name, value, numbers.Real, "a number"))
    except OverflowError:
        real = math.inf
    if not math.isfinite(real):
        raise ConfigError.of(name, f"{real} is not a finite number.")
    if real < least or real <= above or real > most:
        low = f"above {above:g}" if above > -math.inf else f"at least {least:g}"
        high = f" and at most {most:g}" if most < math.inf else ""
        raise ConfigError.of(name, f"{real:g} is out of range; it must be {low}{high}.")
    return real


def integer(name: str, value: object) -> int:
    return int(typed(name, value, numbers.Integral, "an int"))


def count(
    name: str,
    value: object,
    *,
    least: int = 1,
    most: int = MAX_INT32,
    vocabulary: int | None = None,
) -> int:
    whole, most = integer(name, value), vocabulary or most
    if not least <= whole <= most:
        raise ConfigError.of(
            name, f"{shown(whole)} is out of range; it must be from {least} to {most}."
        )
    return whole


def top_k(name: str, value: object) -> int:
    if (whole := count(name, value, least=-1)) == 0:
        raise ConfigError.of(name, "0 is out of range; -1 means all tokens.")
    return whole


def text(name: str, value: object) -> str:
    if not (given := typed(name, value, str, "a name; give it as text")):
        raise ConfigError.of(name, "an empty text is not a name.")
    return check_unicode(given, f"{name}: {shown(value)}", key=name)


def flag(name: str, value: object) -> bool:
    return bool(typed(name, value, bool, "a bool; use True or False"))


def likeliest(name: str, value: object, *, vocabulary: int) -> int:
    whole = count(name, value, least=-1, vocabulary=vocabulary)
    return vocabulary if whole == -1 else whole


def one_of(name: str, value: object, known: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in known:
        hint = did_you_mean(shown(value), known) or "."
        words = ", ".join(map(repr, known))
        raise ConfigError.of(name, f"{shown(value)} is none of {words}{hint}")
    return value


def mapping(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ConfigError.of(name, f"{shown(value)} is not a mapping of names to values.")
    return dict(value)


def template(name: str, value: object) -> str:
    if not typed(name, value, str, "the text of a Jinja template").strip():
        raise ConfigError.of(name, "a blank text is not a template.")
    return str(value)


def template_kwargs(name: str, value: object) -> dict[str, object]:
    kwargs = {key: python_value(item) for key, item in mapping(name, value).items()}
    for key, why in TEMPLATE_OWN.items():
        if key in kwargs:
            raise ConfigError.of(f"{name}.{key}", why)
    return kwargs


def tools_kwargs(name: str, value: object) -> dict[str, object]:
    tools = mapping(name, value)
    for tool, kwargs in tools.items():
        for key in mapping(f"{name}.{tool}", kwargs):
            one_of(f"{name}.{tool}", key, TOOL_KWARGS)
    return tools


def stop_strings(name: str, value: object) -> list[str]:
    if "" in (found := strings(name, value)):
        raise ConfigError.of(name, "an empty string stops everything; leave it out.")
    return found


def strings(name: str, value: object) -> list[str]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list | tuple) or not all(isinstance(each, str) for each in found):
        raise ConfigError.of(name, f"{shown(value)} is neither a string nor a list of strings.")
    return [check_unicode(each, f"{name}: {shown(each)}", key=name) for each in found]


def token_ids(
    name: str, value: object, *, vocabulary: int, least: int = 0, most: int = MAX_INT32
) -> list[int]:
    ids = typed(name, value, (list, tuple), "a list of token ids")
    if not least <= len(ids) <= most:
        reason = f"{len(ids)} ids are too many; at most {most} can be given."
        raise ConfigError.of(name, reason if ids else "an empty list has no token; leave it out.")
    return [token_id(f"{name}[{index}]", token, vocabulary) for index, token in enumerate(ids)]


def token_id(name: str, value: object, vocabulary: int) -> int:
    token = integer(name, value)
    if not 0 <= token < vocabulary:
        raise ConfigError.of(
            name, f"{shown(token)} is outside the vocabulary of {vocabulary} tokens."
        )
    return token
