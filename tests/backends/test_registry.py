"""What backends say of themselves, without one that runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from _inf.backends.base import FEATURES
from _inf.backends.registry import MODES, describe, read_config
from _inf.backends.verl import environment
from _inf.config import Config
from _inf.errors import ConfigError
from tests.support.config_faults import faults


def test_every_feature_is_known_and_offered_by_some_backend() -> None:
    assert frozenset().union(*(mode.supports for mode in MODES)) == FEATURES.keys()


def test_unknown_backend_is_refused_with_the_known_ones() -> None:
    assert faults({"rollout": {"name": "vllm"}}) == [
        "rollout.name: must be 'sglang', 'hf' or 'openai', not 'vllm'"
    ]


def test_versions_are_checked_for_the_backend_that_needs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise ConfigError("environment: verl is 0.7.0 and must be 0.6.1")

    monkeypatch.setattr(environment, "check_pins", broken)
    with pytest.raises(ConfigError, match="^environment: "):
        describe(Config()).prepare(Config())
    served = {"model_path": "m", "base_url": "http://localhost:1/v1"}
    for name, keys in (("hf", {}), ("openai", served)):
        config = read_config(keys, {"rollout": {"name": name}})
        describe(config).prepare(config)


def test_reading_a_config_imports_no_engine() -> None:
    program = """import sys
from _inf.backends.registry import read_config
read_config(None, {"rollout": {"name": "hf"}})
print(sorted({"torch", "verl", "sglang", "transformers", "openai"} & sys.modules.keys()))"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
