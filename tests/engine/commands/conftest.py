"""The command `inf` in this process: `command` starts what it needs, `on_tiny` is handed the
session's tiny engine in place of a new one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import inf
from _inf.apps.cli import main
from inf import InferenceEngine

Ran = tuple[int, str, str]


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`command(*arguments)`: exit code, stdout, stderr."""

    def run(*arguments: Any) -> Ran:
        capfd.readouterr()
        return (main([*map(str, arguments)]), *capfd.readouterr())

    return run


@pytest.fixture
def on_tiny(
    command: Callable[..., Ran], tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Ran]:
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(tiny))
    return command
