"""The environments of an evaluation: their version, which answers depend on, and the factory that
`--environment` names."""

from __future__ import annotations

from collections.abc import Mapping

from _inf.apps.code_version import CodeVersion, version_of
from _inf.apps.eval.reward_process import check_file, from_file
from _inf.errors import ConfigError, error_text

FACTORY, FACTORY_KWARGS = "environment_factory", "environment_kwargs"
ENVIRONMENT = "environment"  # before a name, and the key of the reward in `reward_scores`


def environment_version(params: Mapping[str, object]) -> CodeVersion | None:
    """Return the version of a call's environments, by their code; None if it has none."""
    if params.get(FACTORY_KWARGS) is not None:
        raise ConfigError.of(
            FACTORY_KWARGS, "an environment gets the columns of its row; leave it out."
        )
    factory = params.get(FACTORY)
    if factory is None:
        return None
    kinds = factory if isinstance(factory, Mapping) else {"": factory}
    versions = [version_of(kind) for kind in kinds.values()]
    names = ", ".join(version.name for version in versions)
    return CodeVersion.of_all(f"{ENVIRONMENT} {names}", versions, *map(str, kinds))


def factory_of_file(named: str) -> object:
    """Return the factory, or the dict of factories, that "FILE.py:NAME" names."""
    check_file(named, "--environment", "a factory, FILE.py:NAME")
    try:
        factory, _ = from_file(named)
    except Exception as failure:
        raise ConfigError(f"--environment {named}: {error_text(failure)}.") from failure
    if factory is None:
        name = named.rpartition(":")[2]
        raise ConfigError(f"--environment {named}: the file has nothing named {name!r}.")
    return factory
