"""Checks a config before anything starts, so that a wrong key costs seconds and not a model load.

YAML or a mapping goes in; a frozen `Config` comes out, or one `ConfigError` that lists all faults.
A new config key is a field in `schema.py`. Imports neither verl, SGLang nor torch.
"""

from _inf.config.load import KEYS, check_engine_kwargs, load_config, parse_assignments
from _inf.config.schema import Config, RolloutConfig
from _inf.config.sections import MultiTurn, ReasoningMarks

__all__ = ["Config", "MultiTurn", "ReasoningMarks", "RolloutConfig"]
__all__ += ["KEYS", "check_engine_kwargs", "load_config", "parse_assignments"]
