"""An architecture that was not measured is compared with Transformers when it starts."""

from __future__ import annotations

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from _inf.backends.verl import compiled_libraries, launch_sglang, start_check
from _inf.types import Put, RequestOutput
from inf import ConfigError, InferenceEngine
from tests.support.engines import started
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.verl


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch):
    """As if the tiny model's architecture were not in the table."""
    monkeypatch.setattr(launch_sglang, "EXACT_ON_CPU", [])


def check(engine: InferenceEngine, folder: Path) -> None:
    start_check.check_unmeasured(engine._backend, folder)


def assert_refused(engine: InferenceEngine, folder: Path) -> None:
    said = "does not compute Qwen3ForCausalLM as Transformers does"
    with pytest.raises(ConfigError, match=said):
        launch_sglang._check_started(engine._backend, engine.config, folder)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error")
def test_engine_that_computes_its_folders_model_passes(tiny):
    check(tiny, tiny_model())


@pytest.mark.parametrize("broken", [0.01, math.nan])
def test_engine_that_decodes_something_else_is_refused(tiny, monkeypatch, broken):
    """A prefill and a decoding step are computed by different code."""
    kind = type(tiny._backend)
    stream = kind.stream

    def wrong(self: Any, request: Any, put: Put, cancel: Any) -> Any:
        def put_wrong(row: RequestOutput) -> None:
            logprobs = [*row.logprobs[:1], *(each + broken for each in row.logprobs[1:])]
            put(dataclasses.replace(row, logprobs=logprobs))

        return stream(self, request, put_wrong, cancel)

    monkeypatch.setattr(kind, "stream", wrong)
    assert_refused(tiny, tiny_model())


@pytest.mark.parametrize("case", ["large", "half precision", "unreadable"])
def test_model_that_cannot_be_compared_is_served_with_a_warning(tiny, case, tmp_path, monkeypatch):
    if case == "large":
        monkeypatch.setattr(start_check, "MAX_BYTES", 1000)
    if case == "half precision":
        monkeypatch.setattr(type(tiny.rollout), "dtype", start_check.torch.bfloat16)
    folder = tmp_path if case == "unreadable" else tiny_model(seed=1)
    with pytest.warns(UserWarning, match="Qwen3ForCausalLM was never compared"):
        check(tiny, folder)


def test_start_shows_its_warnings(monkeypatch):
    """Those of others are hidden during a start."""
    monkeypatch.setattr(start_check, "MAX_BYTES", 1000)
    monkeypatch.setattr(compiled_libraries, "_OPTIONS", ("--no-such-option",))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with started():
            pass
    first, second = sorted(str(each.message) for each in caught)
    assert first.startswith("Qwen3ForCausalLM was never compared")
    assert "compiled_kernels: " in second and "no-such-option" in second


def test_engine_that_computes_another_model_is_refused_unless_it_was_measured(tiny, monkeypatch):
    assert_refused(tiny, tiny_model(seed=1))
    monkeypatch.setattr(launch_sglang, "EXACT_ON_CPU", ["Qwen3ForCausalLM"])
    launch_sglang._check_started(tiny._backend, tiny.config, tiny_model(seed=1))  # type: ignore[arg-type]
