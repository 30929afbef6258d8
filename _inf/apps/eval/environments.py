"""Environments of an evaluation: what answers depend on, and a factory out of a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from _inf.apps.code_version import CodeVersion, version_of
from _inf.apps.eval.reward_process import of_file
from _inf.errors import ConfigError, error_text

FACTORY, KWARGS = "environment_factory", "environment_kwargs"
ENVIRONMENT = "environment"  # before a name, and the key of the reward in `reward_scores`


def environment_version(params: Mapping[str, Any]) -> CodeVersion | None:
    """The version of a call's environments, by their code; None if it has none."""
    if params.get(KWARGS) is not None:
        raise ConfigError.of(KWARGS, "an environment gets the columns of its row; leave it out.")
    factory = params.get(FACTORY)
    if factory is None:
        return None
    kinds = factory if isinstance(factory, Mapping) else {"": factory}
    versions = [version_of(kind) for kind in kinds.values()]
    names = ", ".join(version.name for version in versions)
    return CodeVersion.of_all(f"{ENVIRONMENT} {names}", versions, *map(str, kinds))


def factory_of_file(named: str) -> Any:
    """A factory, or a dict of them, of "FILE.py:NAME"."""
    file, _, name = named.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ConfigError(f"--environment {named}: name a file and a factory, FILE.py:NAME.")
    if not Path(file).is_file():
        raise ConfigError(f"--environment {named}: there is no file {file}.")
    try:
        found, _ = of_file(named)
    except Exception as failure:
        raise ConfigError(f"--environment {named}: {error_text(failure)}.") from failure
    if found is None:
        raise ConfigError(f"--environment {named}: the file has nothing named {name!r}.")
    return found
