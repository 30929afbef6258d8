"""Turns YAML or a mapping into a frozen `Config`, or one `ConfigError` that lists all faults.

In: a path, a mapping or None (the embedded default), and overrides merged deeply over it.
Out: a `Config` whose every key works; keys that nothing reads have their neutral value. OmegaConf
reads and resolves, so that verl's own files load. Imports neither verl, SGLang nor torch. A new
config key is a field in `schema.py`.
"""

from _inf.config.check import check_engine_kwargs
from _inf.config.load import load_config, parse_assignments
from _inf.config.schema import Config, MultiTurn, RolloutConfig, ValKwargs

__all__ = [
    "Config",
    "MultiTurn",
    "RolloutConfig",
    "ValKwargs",
    "check_engine_kwargs",
    "load_config",
    "parse_assignments",
]
