"""What backends say of themselves, without one that runs."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from _inf.backends.base import ABILITIES
from _inf.backends.features import FEATURES, check_supported
from _inf.backends.registry import MODES, describe, read_config
from _inf.backends.verl import environment
from _inf.config import Config
from _inf.errors import ConfigError
from tests.support.refusals import refused


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_what_a_backend_lacks_is_refused_by_name_with_those_that_offer_it(mode):
    backend = SimpleNamespace(
        name="ours", supports=mode.supports, check_process=lambda: None, adapters=[]
    )
    for feature, calls in FEATURES.items():
        offers = [each.name for each in MODES if feature in each.supports]
        for name, neutral in calls.items():
            check_supported(backend, {name: neutral} | dict.fromkeys(calls.keys() - {name}))
            if feature in mode.supports:
                check_supported(backend, {name: object()})
                continue
            with refused(ConfigError, "^.*: the backend ours does not offer it; ", key=name) as why:
                check_supported(backend, {name: object()})
            assert any(f"{offer} " in str(why.value) for offer in offers)


@pytest.mark.parametrize(
    ("backend", "mode"),
    [
        ("hf.backend:HfBackend", "hf"),
        ("openai.backend:OpenAIBackend", "openai"),
        ("openai.backend:PausingServer", "openai on vLLM or inf serve"),
        ("openai.backend:UpdatedServer", "openai on SGLang's server of this machine"),
    ],
)
def test_what_a_backend_says_of_itself_is_what_its_class_can_do(backend, mode):
    [described] = [each for each in MODES if each.name == mode]
    kind = pkgutil.resolve_name(f"_inf.backends.{backend}")
    can = {name for name, ability in ABILITIES.items() if issubclass(kind, ability)}
    assert can == ABILITIES.keys() & described.supports


@pytest.mark.verl
def test_versions_are_checked_for_the_backend_that_needs_them(monkeypatch):
    def broken() -> None:
        raise ConfigError("environment: verl is 0.7.0 and must be 0.6.1")

    monkeypatch.setattr(environment, "check_pins", broken)
    with pytest.raises(ConfigError, match="^environment: "):
        describe(Config()).prepare(Config())
    served = {"model_path": "m", "base_url": "http://localhost:1/v1"}
    for name, keys in (("hf", {}), ("openai", served)):
        config = read_config(keys, {"rollout": {"name": name}})
        describe(config).prepare(config)


def test_reading_a_config_imports_no_engine():
    program = """import sys
from _inf.backends.registry import read_config
read_config(None, {"rollout": {"name": "hf"}})
print(sorted({"torch", "verl", "sglang", "transformers", "openai"} & sys.modules.keys()))"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
