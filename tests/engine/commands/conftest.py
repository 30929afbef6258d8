"""The command `inf` in this process, on the session's tiny engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

import inf
from inf import InferenceEngine

Ran = tuple[int, str, str]


@pytest.fixture
def on_tiny(
    command: Callable[..., Ran], tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(tiny))
    return command
