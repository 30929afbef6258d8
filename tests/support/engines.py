"""Engines that tests start: greedy, of float32, with room for most tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from inf import InferenceEngine
from tests.support.tiny import tiny_model

LENGTHS = {"prompt_length": 512, "response_length": 128}
LONGER = {"prompt_length": 1024, "response_length": 512}  # for conversations with tools
Folder = Path | str | Callable[[], Path]


def started(
    folder: Folder = tiny_model, *, config: Mapping[str, Any] | None = None, **rollout: Any
) -> InferenceEngine:
    """An engine on a model. config: keys beside `rollout`."""
    path = folder() if callable(folder) else folder
    keys = {"dtype": "float32", "do_sample": False, **LENGTHS, **rollout}
    return InferenceEngine(model_path=str(path), rollout=keys, **(config or {}))


def engine_fixture(folder: Folder = tiny_model, scope: Any = "module", **how: Any) -> Any:
    """A fixture with such an engine."""

    @pytest.fixture(scope=scope)
    def engine():
        with started(folder, **how) as engine:
            yield engine

    return engine


def connected(base_url: str, model: Path | str, **config: Any) -> InferenceEngine:
    """An engine on a server, which sends token ids if it is given a tokenizer_path."""
    keys = {"name": "openai", "do_sample": False, **LENGTHS}
    return InferenceEngine(base_url=base_url, model_path=str(model), rollout=keys, **config)
