"""Keywords of a call resolved without an engine, for a model of 384 tokens with two EOS ids."""

from __future__ import annotations

from typing import Any

import pytest

from _inf.config import RolloutConfig, load_config
from _inf.errors import ConfigError
from _inf.parts.part import values_of
from _inf.request.sampling import Sampling, resolve
from _inf.types import Limits, ModelInfo, SamplingParams

VOCABULARY = 384
MODEL = ModelInfo(None, frozenset({2, 0}), Limits(prompt=512, total=640, vocabulary=VOCABULARY))
HUGE = 10**5000  # more digits than Python prints, and no float


def config(**rollout: Any) -> RolloutConfig:
    return load_config({"model_path": "another", "rollout": rollout}, {}).rollout


DEFAULT = config()


def sampled(_config: RolloutConfig = DEFAULT, _prompts: int = 1, **params: Any) -> Sampling:
    return resolve(params, _config, range(_prompts), MODEL)


def asked(params: SamplingParams) -> dict[str, Any]:
    """The keywords of parts that a row asks for."""
    return values_of(params.parts)


def greedy(sampling: Sampling) -> bool:
    return all(params.greedy for params in sampling.params)


def fault(_config: RolloutConfig = DEFAULT, _prompts: int = 1, **params: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        resolve(params, _config, range(_prompts), MODEL)
    key = caught.value.key
    assert key is not None and str(caught.value).startswith(f"{key}: ")
    return caught.value


def refusal(_config: RolloutConfig = DEFAULT, _prompts: int = 1, **params: Any) -> str:
    return str(fault(_config, _prompts, **params))
