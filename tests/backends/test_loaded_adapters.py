"""Failures between the load of an adapter and the unloading of the one that it replaces. Names and
versions: `tests/engine/answers/test_adapters.py`."""

from __future__ import annotations

import asyncio

import pytest

from _inf.backends.loaded_adapters import Adapter, LoadedAdapters, NewAdapter
from _inf.errors import ConfigError, EngineDeadError, InferenceError


class Failing(LoadedAdapters):
    """failure: of the next unloading, and with `full` of the next load."""

    failure: Exception | None = None
    full = False

    def checked(self, name: str, weights: object, peft_config: object) -> NewAdapter:
        raise NotImplementedError

    async def _load(self, name: str, new: NewAdapter) -> str:
        if self.full:
            raise InferenceError("full")
        return f"{name}@{new.folder}"

    async def _unload(self, key: str) -> None:
        if self.failure is not None:
            raise self.failure

    def put(self, folder: str) -> int:
        return asyncio.run(self.load("a", NewAdapter(folder=folder), None))


@pytest.fixture
def adapters():
    adapters = Failing()
    adapters.put("x")
    return adapters


def test_load_or_unloading_that_fails_changes_nothing(adapters):
    adapters.full, adapters.failure = True, InferenceError("full")
    for change in (lambda: adapters.put("y"), lambda: asyncio.run(adapters.unload("a"))):
        with pytest.raises(InferenceError, match="full"):
            change()
    assert adapters.names == ["a"] and adapters.of("a") == Adapter("a@x", 0)


def test_engine_that_dies_while_one_is_replaced_is_dead(adapters):
    """Any other failure there is a warning: `test_openai_adapters.py`."""
    adapters.failure = EngineDeadError("gone")
    with pytest.raises(EngineDeadError):
        adapters.put("z")


def test_name_that_was_unloaded_since_its_call_was_checked_is_an_error_of_the_row(adapters):
    asyncio.run(adapters.unload("a"))
    with pytest.raises(ConfigError, match="adapter: 'a' was unloaded"):
        adapters.of("a")
