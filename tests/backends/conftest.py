"""A server for the tests of the backend `openai`, and the C functions for those of `sglang`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.scripted_server import ScriptedServer, echo, scripted


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted(echo) as server:
        yield server


@pytest.fixture(scope="session")
def compiled_kernels() -> Any:
    """`Kernels`, of the library that gcc makes here."""
    from _inf.backends.verl import compiled_libraries, environment

    environment.prepare("auto")
    from _inf.backends.verl.child.kernels import Kernels

    library = compiled_libraries.kernel_library()
    assert library is not None, "there must be a gcc"
    return Kernels(library)
