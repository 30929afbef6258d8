"""Turns `sampling_params` into keywords, as vLLM's `generate(prompts, sampling_params)` takes them.

In: a dict, or an object with vLLM's fields (vLLM 0.32's `SamplingParams`; SGLang's and others with
the same names too). Out: the keywords of this library. A field that has no equal here may only have
its default value.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from numbers import Integral
from typing import cast

from _inf.config.load import resolving
from _inf.config.other_names import hint
from _inf.config.source import plain
from _inf.errors import ConfigError, shown
from _inf.parts.typed import GenerateParams
from _inf.request.keywords import FILTERS, KEYWORDS
from _inf.types import JSON

# Names that SGLang and Transformers have for the same values.
_OTHER_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "sampling_seed": "seed",
    "stop_strs": "stop",
    "no_stop_trim": "include_stop_str_in_output",
}
_SAMPLE = ("temperature", *FILTERS)
# Fields that change no answer: vLLM's that its class derives or sets, and Transformers' version.
_NO_ANSWER = (
    *("output_text_buffer_length", "skip_reading_prefix_cache", "output_kind"),
    "transformers_version",
)


def joined(call: str, sampling_params: object, params: GenerateParams) -> GenerateParams:
    """Return both as keywords; `call` is named in errors."""
    given, defaults = _fields(call, sampling_params)
    named: dict[str, tuple[str, object]] = {}  # a keyword, and the field that it comes from
    unknown = []
    for name, value in given.items():
        here = _OTHER_NAMES.get(name, name)
        if here in KEYWORDS:
            if value is None and defaults.get(name) is not None:
                unknown.append(f"{name}=None has no equal here; None means what the config says")
            elif value is not None:
                other, same = named.setdefault(here, (name, value))
                if not _same(same, value):
                    why = f"sampling_params has it as {other} and as {name}; leave one of them out."
                    raise ConfigError.of(here, why)
        elif name not in _NO_ANSWER and not _says_nothing(value, defaults.get(name)):
            near = hint(name, KEYWORDS)
            unknown.append(
                f"{name} is no keyword here{near}" if near else f"{name} has no equal here"
            )
    keywords: JSON = {name: value for name, (_, value) in named.items()}
    greedy = keywords.get("do_sample") is False  # as Transformers' class, with its temperature of 1
    keywords = {
        name: _value(name, value)
        for name, value in keywords.items()
        if not (greedy and name in _SAMPLE and _same(value, defaults.get(name)))
    }
    if unknown:
        said = {n: value for n, value in keywords.items() if not _same(value, KEYWORDS[n].neutral)}
        words = ", ".join(["prompts", *(f"{name}={shown(value)}" for name, value in said.items())])
        write = f"the others are {call[:-1]}{words}, ...)" if said else ""
        raise ConfigError.of("sampling_params", f"{'; '.join([*unknown, write]).rstrip('; ')}.")
    params = cast(GenerateParams, {k: value for k, value in params.items() if value is not None})
    if twice := [name for name in keywords if name in params]:
        raise ConfigError.of(twice[0], "sampling_params has it too; leave one of them out.")
    return cast(GenerateParams, {**keywords, **params})


def _says_nothing(value: object, default: object) -> bool:
    empty = isinstance(value, list | dict | set) and not value
    return value is None or empty or _same(value, default)


def _value(name: str, value: object) -> object:
    """Return the value as a keyword has it: vLLM's top_k of 0 keeps all, SGLang has sets of ids."""
    if name == "top_k":
        if isinstance(value, list):
            return [_value(name, each) for each in value]
        number = isinstance(value, Integral) and not isinstance(value, bool)
        return -1 if number and value == 0 else value
    return sorted(value, key=str) if isinstance(value, set) else value


def _same(one: object, other: object) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # arrays, whose comparison has no single answer
        return False


def _fields(call: str, value: object) -> tuple[JSON, JSON]:
    """Return the public fields of a dict or an object, and the defaults of the object's class."""
    if isinstance(value, Mapping):
        with resolving():
            return dict(plain(value)), {}
    place = f"{call}: {shown(value)} is in second place, which is for sampling parameters: "
    try:
        fields = _public(value)
    except Exception:  # a property may raise anything
        fields = {}
    if isinstance(value, type) or not fields.keys() & {*KEYWORDS, *_OTHER_NAMES}:
        raise ConfigError(
            f"{place}a dict or an object such as vLLM's SamplingParams, for all prompts; write "
            f"{call[:-1]}prompts, temperature=0, max_tokens=64), with several prompts as one list. "
            "Where parameters differ by prompt, a keyword takes a list with a value for each."
        )
    try:
        return fields, _public(type(value)())
    except Exception:  # a constructor may raise anything
        raise ConfigError(
            f"{place}{type(value).__name__}() without arguments fails, so its defaults are not "
            "known; give a dict of the fields that you set."
        ) from None


def _public(value: object) -> JSON:
    """Return the fields that the object's class declares, and others that are keywords here; all
    that can be read, if the class declares none."""
    of = type(value)
    declared = (
        getattr(of, "__struct_fields__", ())  # msgspec's, as vLLM's
        or getattr(of, "__dataclass_fields__", ())
        or getattr(of, "model_fields", ())  # pydantic's
        or getattr(of, "_fields", ())  # of a named tuple
    )
    more = {*KEYWORDS, *_OTHER_NAMES, *getattr(value, "__dict__", ())}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # attributes that a class no longer wants to be read
        members = inspect.getmembers(
            value, lambda m: not (inspect.ismethod(m) or inspect.isbuiltin(m))
        )
    fields = {
        name: member
        for name, member in members
        if not name.startswith("_") and (not declared or name in declared or name in more)
    }
    return {**fields, **(getattr(value, "model_extra", None) or {})}  # pydantic's undeclared ones
