"""The LoRA adapters of an engine, by name, on any backend: which are loaded, with which versions.

A backend's own class checks an adapter and moves its tensors, or has a server read its folder.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from _inf.errors import ConfigError, EngineDeadError, InferenceError
from _inf.runtime import quiet

if TYPE_CHECKING:
    import torch

    from _inf.backends.new_adapters import AdapterForm


@dataclasses.dataclass(frozen=True)
class NewAdapter:
    """An adapter that was checked: its tensors and their form, or a folder that a server reads."""

    form: AdapterForm | None = None
    tensors: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)
    folder: str = ""


@dataclasses.dataclass(frozen=True)
class Adapter:
    """A loaded adapter. key: its name inside of the engine, or at the server. form: as in
    `NewAdapter`."""

    key: str
    version: int
    form: AdapterForm | None = None


class LoadedAdapters(abc.ABC):
    """The adapters of an engine. They change while no call runs.

    A new adapter is there before the one of its name that it replaces is unloaded, so a load that
    fails changes nothing.
    """

    def __init__(self) -> None:
        self._loaded: dict[str, Adapter] = {}
        self._versions: dict[str, int] = {}  # of unloaded ones too, so that none comes again

    @property
    def names(self) -> list[str]:
        return list(self._loaded)

    def of(self, name: str) -> Adapter:
        if name not in self._loaded:  # it was when the call was checked
            raise ConfigError.of("adapter", f"{name!r} was unloaded.")
        return self._loaded[name]

    @abc.abstractmethod
    def checked(self, name: str, weights: object, peft_config: object) -> NewAdapter:
        """Check all of an adapter, on the caller's thread; raises `ConfigError` about
        `adapters.NAME`. weights: a folder, or as in `update_weights`."""

    @abc.abstractmethod
    async def _load(self, name: str, new: NewAdapter) -> str:
        """Load it, and return its key: the known one if it has overwritten the weights of the
        adapter of this name."""

    @abc.abstractmethod
    async def _unload(self, key: str) -> None:
        """Unload an adapter."""

    async def load(self, name: str, new: NewAdapter, version: int | None) -> int:
        """Load what `checked` returned, in place of an adapter of that name; return its version."""
        key, replaced = await self._load(name, new), self._loaded.get(name)
        version = self._versions.get(name, -1) + 1 if version is None else version
        self._put(name, Adapter(key, version, new.form))
        if replaced is not None and replaced.key != key:
            try:
                await self._unload(replaced.key)
            except EngineDeadError:
                raise
            except InferenceError as failure:  # the new one answers, so the load has not failed
                quiet.warn(f"adapters.{name}: its earlier weights are still loaded: {failure}")
        return version

    async def unload(self, name: str) -> None:
        await self._unload(self.of(name).key)
        self._loaded.pop(name, None)

    def count_up(self) -> None:
        """Give each adapter its next version: the model's own weights are others now."""
        for name, adapter in self._loaded.items():
            self._put(name, dataclasses.replace(adapter, version=adapter.version + 1))

    def _put(self, name: str, adapter: Adapter) -> None:
        self._loaded[name], self._versions[name] = adapter, adapter.version
