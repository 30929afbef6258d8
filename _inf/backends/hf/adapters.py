"""The LoRA adapters of a model: PEFT's own layers. A forward pass uses one adapter, or none.

A row is computed beside rows of its own adapter only. PEFT can mix them in one batch
(`adapter_names`), but counts them by the first dimension of each layer's input, and that is tokens
in the experts of a MoE model.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import re
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from _inf.backends import new_adapters, new_weights
from _inf.backends.new_weights import ExpectedWeights
from _inf.errors import ConfigError

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel


_OF_AN_ADAPTER = re.compile(r"\.lora_\w+\.adapter\d+\b")  # in the names of a state dict


@dataclasses.dataclass
class _Loaded:
    """An adapter. key: its name in PEFT's layers, where not every name can be."""

    key: str
    config: dict[str, Any]
    expected: ExpectedWeights
    version: int


class Adapters:
    """The adapters of a model. They change while no call runs."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._peft: PeftModel | None = None
        self._loaded: dict[str, _Loaded] = {}
        self._versions: dict[str, int] = {}  # of unloaded ones too, so that none comes again
        self._keys = map("adapter{}".format, itertools.count())
        self._active: str | None = None
        self._wanted = threading.local()
        # Beams are searched on another thread than the engine's, with the same layers.
        self._one_pass = threading.Lock()

    @property
    def names(self) -> list[str]:
        return list(self._loaded)

    def version(self, name: str) -> int:
        return self._of(name).version

    def _of(self, name: str) -> _Loaded:
        if name not in self._loaded:  # it was when the call was checked
            raise ConfigError.of("adapter", f"{name!r} was unloaded.")
        return self._loaded[name]

    @contextlib.contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """Compute the passes of this thread with an adapter; None: with none."""
        self._wanted.key = None if name is None else self._of(name).key
        try:
            yield
        finally:
            self._wanted.key = None

    def prepared(
        self, name: str, weights: object, peft_config: object
    ) -> tuple[LoraConfig, new_weights.NamedTensors]:
        """Return an adapter's config and its weights, checked; raises `ConfigError` about
        `adapters.NAME`. weights: a folder, or as in `update_weights`."""
        known = self._loaded.get(name)
        return new_adapters.checked(
            name,
            weights,
            peft_config,
            known.config if known else None,
            lambda config: self._expected(name, config),
        )

    def _expected(self, name: str, config: LoraConfig) -> ExpectedWeights:
        """What PEFT would save of an adapter with this config; allocates nothing."""
        known = self._loaded.get(name)
        if known and known.config == dict(vars(config)):
            return known.expected
        return new_adapters.expected_weights(
            config, lambda: type(self._model)(copy.deepcopy(self._model.config))
        )

    def load(
        self,
        name: str,
        config: LoraConfig,
        tensors: new_weights.NamedTensors,
        version: int | None,
    ) -> int:
        """Load what `prepared` returned, in place of an adapter of the same name."""
        from peft import set_peft_model_state_dict

        expected, fields, old = self._expected(name, config), dict(vars(config)), None
        if (known := self._loaded.get(name)) is not None and known.config != fields:
            known, old = None, known
        with self._one_pass:
            key = known.key if known else self._added(config)
            assert self._peft is not None
            set_peft_model_state_dict(self._peft, dict(tensors), adapter_name=key)
            self._disable()
            if old is not None:
                self._delete(old.key)
        version = self._versions.get(name, -1) + 1 if version is None else version
        self._versions[name] = version
        self._loaded[name] = _Loaded(key, fields, expected, version)
        return version

    def _added(self, config: LoraConfig) -> str:
        """Add an adapter without weights to the layers; returns its key."""
        from peft import PeftModel

        key, config = next(self._keys), copy.deepcopy(config)
        if self._peft is not None:
            self._peft.add_adapter(key, config)
        else:
            self._peft = PeftModel(self._model, config, key)
            self._model.register_forward_pre_hook(self._begin_pass)
            self._model.register_forward_hook(self._end_pass, always_call=True)
        self._peft.eval()
        return key

    def unload(self, name: str) -> None:
        key = self._of(name).key
        with self._one_pass:
            self._delete(key)
        del self._loaded[name]

    def _delete(self, key: str) -> None:
        assert self._peft is not None
        for other in [each for each in self._peft.peft_config if each != key][:1]:
            # PEFT warns if the active one is deleted.
            self._peft.base_model.set_adapter(other, inference_mode=True)
        self._peft.delete_adapter(key)
        self._disable()

    def count_up(self) -> None:
        """Give each adapter its next version: the model's own weights are others now."""
        for name, loaded in self._loaded.items():
            loaded.version += 1
            self._versions[name] = loaded.version

    def own_weights(self) -> dict[str, torch.Tensor]:
        """The state dict of the model without adapters, whose layers have PEFT's around them."""
        state: dict[str, torch.Tensor] = self._model.state_dict(keep_vars=True)
        if self._peft is None:
            return state
        own = (name for name in state if not _OF_AN_ADAPTER.search(name))
        return {name.replace(".base_layer.", "."): state[name] for name in own}

    def _begin_pass(self, model: Any, arguments: Any) -> None:
        self._one_pass.acquire()  # `_end_pass` releases it, also if this fails
        key = getattr(self._wanted, "key", None)
        if key == self._active:
            return
        if key is None:
            self._disable()
            return
        assert self._peft is not None
        self._peft.base_model.set_adapter(key, inference_mode=True)
        if self._active is None:
            self._peft.base_model.enable_adapter_layers()
        self._active = key

    def _disable(self) -> None:
        assert self._peft is not None
        self._peft.base_model.disable_adapter_layers()
        self._active = None

    def _end_pass(self, model: Any, arguments: Any, output: Any) -> None:
        self._one_pass.release()
