"""A server for the tests of the backend `openai`, and the C functions for those of `sglang`."""

import pytest

from tests.support.scripted_server import echo, scripted


@pytest.fixture
def server():
    with scripted(echo) as server:
        yield server


@pytest.fixture(scope="session")
def compiled_kernels():
    """`Kernels`, of the library that gcc makes here."""
    from _inf.backends.verl import compiled_libraries, environment

    environment.prepare("auto")
    from _inf.backends.verl.child.kernels import Kernels

    library = compiled_libraries.kernel_library()
    assert library is not None, "there must be a gcc"
    return Kernels(library)
