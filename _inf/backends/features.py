"""The features that calls and keywords need, and the refusal if a backend lacks one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from _inf.backends.base import CALLS, Backend
from _inf.errors import ConfigError
from _inf.parts.found import PARTS
from _inf.request.keywords import KEYWORDS

if TYPE_CHECKING:
    from _inf.backends.description import BackendDescription, Mode
    from _inf.types import SamplingParams

# Each feature with the calls and keywords that need it, and their values that do not.
FEATURES: dict[str, dict[str, object]] = {name: dict.fromkeys(CALLS[name]) for name in CALLS}
for _name, _keyword in KEYWORDS.items():
    if _keyword.feature:
        FEATURES.setdefault(_keyword.feature, {})[_name] = _keyword.neutral
NEEDED = {name: feature for feature, names in FEATURES.items() for name in names}

FEATURES.update({name: {} for part in PARTS if part.reads for name in part.features()})


def check_supported(backend: Backend, asked: Mapping[str, object]) -> None:
    """Refuse calls in a fork, and calls and keywords, by name, whose feature the backend lacks."""
    backend.check_process()
    for name, value in asked.items():
        feature = NEEDED.get(name)
        if feature is None or feature in backend.supports:
            continue
        if value is not None and value != FEATURES[feature][name]:
            from _inf.backends.registry import BACKENDS

            offers = [mode for each in BACKENDS for mode in _first_mode(each, feature)]
            others = " or ".join(mode.name for mode in offers if mode.name != backend.name)
            does = f"; rollout.name: {others} does" if others else ""
            instead = "".join(part.instead for part in PARTS if feature in part.features())
            raise ConfigError.of(
                name, f"the backend {backend.name} does not offer it{does}.{instead}"
            )


def check_parts(backend: object, params: Sequence[SamplingParams]) -> None:
    """Refuse what the prompts of a call ask for and a running backend does not have."""
    for kind in dict.fromkeys(type(part) for each in params for part in each.parts):
        kind.check_on(backend, params)


def _first_mode(described: BackendDescription, feature: str) -> list[Mode]:
    return [mode for mode in described.modes if feature in mode.supports][:1]
