"""A server for the tests of the backend `openai`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.scripted_server import ScriptedServer, echo, scripted


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted(echo) as server:
        yield server
