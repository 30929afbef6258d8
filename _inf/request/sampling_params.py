"""Turns `sampling_params` into keywords, as vLLM's `generate(prompts, sampling_params)` takes them.

In: a dict, or an object with vLLM's fields (vLLM 0.32's `SamplingParams`; SGLang's and others with
the same names too). Out: the keywords of this library. A field that has no equal here may only have
its default value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from _inf.config.other_names import hint
from _inf.errors import ConfigError, shown
from _inf.parts.typed import GenerateParams
from _inf.request.keywords import KEYWORDS
from _inf.types import JSON

# Names that SGLang and Transformers have for the same values.
_OTHER_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "sampling_seed": "seed",
}
# Fields that vLLM's class sets itself, from others that are read here.
_DERIVED = ("output_text_buffer_length", "skip_reading_prefix_cache")


def joined(call: str, sampling_params: object, params: GenerateParams) -> GenerateParams:
    """Return both as keywords; `call` is named in errors."""
    given, defaults = _fields(call, sampling_params)
    keywords: JSON = {}
    unknown = []
    for name, value in given.items():
        here = _OTHER_NAMES.get(name, name)
        if here in KEYWORDS:
            if value is not None and (not isinstance(value, list | dict) or value):
                zero = isinstance(value, int) and here == "top_k" and value == 0  # all, in vLLM
                keywords[here] = -1 if zero else value
        elif name not in _DERIVED and (name not in defaults or value != defaults[name]):
            near = hint(name, KEYWORDS)
            unknown.append(
                f"{name} is no keyword here{near}" if near else f"{name} has no equal here"
            )
    if unknown:
        said = {name: value for name, value in keywords.items() if KEYWORDS[name].asks(value)}
        words = ", ".join(["prompts", *(f"{name}={shown(value)}" for name, value in said.items())])
        write = f"the others are {call[:-1]}{words}, ...)" if said else ""
        raise ConfigError.of("sampling_params", f"{'; '.join([*unknown, write]).rstrip('; ')}.")
    params = cast(GenerateParams, {k: value for k, value in params.items() if value is not None})
    if twice := [name for name in keywords if name in params]:
        raise ConfigError.of(twice[0], "sampling_params has it too; leave one of them out.")
    return cast(GenerateParams, {**keywords, **params})


def _fields(call: str, value: object) -> tuple[JSON, JSON]:
    """Return the public fields of a dict or an object, and the defaults of the object's class."""
    if isinstance(value, Mapping):
        return {str(name): each for name, each in value.items()}, {}
    try:
        fields, defaults = _public(value), _public(type(value)())
        if not fields.keys() & {*KEYWORDS, *_OTHER_NAMES}:  # properties, or attributes of its class
            raise TypeError
        return fields, defaults
    except Exception:  # vars() and a class's constructor may raise anything
        raise ConfigError(
            f"{call}: {shown(value)} is in second place, which is for sampling parameters: a dict "
            f"or an object such as vLLM's SamplingParams; write {call[:-1]}prompts, temperature=0, "
            "max_tokens=64), with several prompts as one list."
        ) from None


def _public(value: Any) -> JSON:
    if hasattr(value, "__struct_fields__"):  # as vLLM's
        import msgspec

        fields = msgspec.structs.asdict(value)
    else:
        fields = vars(value)
    return {name: item for name, item in fields.items() if not name.startswith("_")}
