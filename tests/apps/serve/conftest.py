"""A server on each of the session's engines, and one on the model that calls tools."""

import pytest

from tests.support.scripted_thoughts import speaking
from tests.support.serve_clients import Http, client


@pytest.fixture(scope="session")
def tiny_server(tiny):
    with tiny.serve() as server:
        yield server


@pytest.fixture(scope="session")
def tiny_client(tiny_server):
    return client(tiny_server)


@pytest.fixture(scope="session")
def http(tiny_server):
    return Http(tiny_server)


@pytest.fixture(autouse=True)
def sessions_of_the_test_alone(request):
    """Names may be used again, by the same test too when it is repeated."""
    names = {"tiny_server", "caller_server"} & {*request.fixturenames}
    servers = [request.getfixturevalue(name) for name in names]
    yield
    for server in servers:
        for name in server.sessions():
            Http(server, name).delete()


@pytest.fixture(scope="session")
def caller_server(caller):
    with caller.serve() as server:
        yield server


@pytest.fixture(scope="session")
def spoken():
    """An engine whose answers a test gives in advance, thoughts and calls among them."""
    with speaking() as made:
        yield made


@pytest.fixture(scope="module")
def server(spoken):
    """A server on the engine of `spoken`."""
    with spoken[1].serve() as server:
        yield server


@pytest.fixture
def speaker(spoken):
    return spoken[0]
