"""The command `inf` in this process, on the session's tiny engine."""

from __future__ import annotations

import contextlib

import pytest

import inf


@pytest.fixture
def on_tiny(command, tiny, monkeypatch):
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(tiny))
    return command
