"""Checks new weights and adapters for a running engine."""

from __future__ import annotations

from _inf.backends.base import Backend
from _inf.backends.features import check_supported
from _inf.config import Config
from _inf.errors import ConfigError, shown
from _inf.request import values


def check_new_adapter(config: Config, name: str, version: int | None) -> int | None:
    """Refuse a name that no adapter can have; return its checked version."""
    if values.text("name", name) == config.model_name:
        raise ConfigError.of(
            "name", f"{shown(name)} is the model's name; give the adapter another one."
        )
    return _checked_version(version)


def checked_update(
    backend: Backend, version: int | None, running: str, recompute: bool
) -> tuple[int | None, bool]:
    """Check how weights are to be updated; return their version, and whether running rows go on."""
    number = _checked_version(version)
    keep = values.one_of("running", running, ("wait", "keep")) == "keep"
    if values.flag("recompute", recompute) or keep:
        check_supported(backend, {"pause()": True})
    if recompute and not keep and not backend.paused:
        raise ConfigError.of(
            "recompute",
            "without running='keep', all rows end before the "
            "update; set that, or leave recompute out.",
        )
    return number, keep


def _checked_version(version: int | None) -> int | None:
    """The number of new weights; None for one more than before."""
    return None if version is None else values.count("version", version, least=0, most=2**63 - 1)
