"""Which adapters are loaded, and with which versions, whatever loads them."""

from __future__ import annotations

import asyncio

import pytest

from _inf.backends.loaded_adapters import Adapter, LoadedAdapters, NewAdapter
from _inf.errors import ConfigError, EngineDeadError, InferenceError


class Listed(LoadedAdapters):
    """there: the folders, by key. failure: of the next load or unload."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[str, str] = {}
        self.failure: Exception | None = None
        self.unloading: Exception | None = None

    def checked(self, name: str, weights: object, peft_config: object) -> NewAdapter:
        raise NotImplementedError

    async def _load(self, name: str, new: NewAdapter) -> str:
        self._fail()
        same = self._loaded.get(name) if new.folder == "same" else None
        key = same.key if same else f"{name}@{new.folder}"
        self.there[key] = new.folder
        return key

    async def _unload(self, key: str) -> None:
        if self.unloading is not None:
            raise self.unloading
        self._fail()
        del self.there[key]

    def _fail(self) -> None:
        if self.failure is not None:
            raise self.failure

    def put(self, name: str, folder: str, version: int | None = None) -> int:
        return asyncio.run(self.load(name, NewAdapter(folder=folder), version))


@pytest.fixture
def adapters():
    return Listed()


def test_version_counts_up_for_each_name_and_never_comes_again(adapters):
    assert [adapters.put("a", folder) for folder in "xyx"] == [0, 1, 2]
    assert adapters.put("b", "x") == 0 and adapters.names == ["a", "b"]
    assert adapters.put("a", "z", version=40) == 40
    adapters.count_up()  # new weights of the model
    assert (adapters.of("a").version, adapters.of("b").version) == (41, 1)
    asyncio.run(adapters.unload("a"))
    assert adapters.names == ["b"] and adapters.there == {"b@x": "x"}
    adapters.count_up()
    assert adapters.put("a", "x") == 42 and adapters.of("b").version == 2


def test_load_that_fails_changes_nothing(adapters):
    adapters.put("a", "x")
    adapters.failure = InferenceError("full")
    for name in ("a", "b"):
        with pytest.raises(InferenceError, match="full"):
            adapters.put(name, "y")
    assert adapters.names == ["a"] and adapters.of("a") == Adapter("a@x", 0)
    with pytest.raises(InferenceError, match="full"):
        asyncio.run(adapters.unload("a"))
    assert adapters.names == ["a"]


def test_engine_that_dies_while_one_is_replaced_is_dead(adapters):
    """Any other failure there is a warning: `test_openai_adapters.py`."""
    adapters.put("a", "x")
    adapters.unloading = EngineDeadError("gone")
    with pytest.raises(EngineDeadError):
        adapters.put("a", "z")


def test_name_that_was_unloaded_since_its_call_was_checked_is_an_error_of_the_row(adapters):
    with pytest.raises(ConfigError, match="adapter: 'a' was unloaded"):
        adapters.of("a")
