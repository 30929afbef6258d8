"""The LoRA adapters of a model: PEFT's own layers. A forward pass uses one adapter, or none.

Only rows of one adapter are computed together. PEFT can mix them in one batch (`adapter_names`),
but counts them by the first dimension of each layer's input, and that is tokens in the experts of a
MoE model.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from _inf.backends import new_adapters
from _inf.backends.loaded_adapters import LoadedAdapters, NewAdapter
from _inf.runtime import quiet

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel


_OF_AN_ADAPTER = re.compile(r"\.lora_\w+\.adapter\d+\b")  # in the names of a state dict


class PeftAdapters(LoadedAdapters):
    """The adapters of a model, by keys of ours: not every name can be one in PEFT's layers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self._peft: PeftModel | None = None
        self._keys = map("adapter{}".format, itertools.count())
        self._active: str | None = None
        self._wanted = threading.local()
        # Beams are searched on another thread than the engine's, with the same layers.
        self._one_pass = threading.Lock()

    def free(self) -> None:
        """Let the model go, at the engine's end; nothing of it refers to itself any more."""
        vars(self._model).pop("forward", None)
        self._model = self._peft = None

    @contextlib.contextmanager
    def using(self, name: str | None) -> Iterator[None]:
        """Compute the passes of this thread with an adapter; None: with none."""
        self._wanted.key = None if name is None else self.of(name).key
        try:
            yield
        finally:
            self._wanted.key = None

    def checked(self, name: str, weights: object, peft_config: object) -> NewAdapter:
        known, model = self._loaded.get(name), self._model
        return new_adapters.checked(
            name,
            weights,
            peft_config,
            known.form if known else None,
            lambda: type(model)(copy.deepcopy(model.config)),
            self.own_weights(),
        )

    async def _load(self, name: str, new: NewAdapter) -> str:
        from peft import set_peft_model_state_dict

        known = self._loaded.get(name)
        assert new.form is not None
        with self._one_pass, quiet.third_party():
            same = known is not None and known.form == new.form
            key = known.key if known and same else self._added(new.form.config)
            assert self._peft is not None
            set_peft_model_state_dict(self._peft, dict(new.tensors), adapter_name=key)
            self._disable()
        return key

    def _added(self, config: LoraConfig) -> str:
        """Add an adapter without weights to the layers; returns its key."""
        from peft import PeftModel

        key, config = next(self._keys), copy.deepcopy(config)
        if self._peft is not None:
            self._peft.add_adapter(key, config)
        else:
            self._peft = PeftModel(self._model, config, key)
            self._model.forward = self._in_turn(self._model.forward)
        self._peft.eval()
        return key

    async def _unload(self, key: str) -> None:
        assert self._peft is not None
        with self._one_pass:
            for other in [other for other in self._peft.peft_config if other != key][:1]:
                # PEFT warns if the active one is deleted.
                self._peft.base_model.set_adapter(other, inference_mode=True)
            self._peft.delete_adapter(key)
            self._disable()

    def own_weights(self) -> dict[str, torch.Tensor]:
        """The state dict of the model without adapters, whose layers have PEFT's around them."""
        state: dict[str, torch.Tensor] = self._model.state_dict(keep_vars=True)
        if self._peft is None:
            return state
        names = (name for name in state if not _OF_AN_ADAPTER.search(name))
        return {name.replace(".base_layer.", "."): state[name] for name in names}

    def _in_turn(self, forward: Callable[..., object]) -> Callable[..., object]:
        """The model's forward pass, with the adapter that its thread wants."""

        @functools.wraps(forward)
        def run(*args: object, **kwargs: object) -> object:
            with self._one_pass:
                self._activate(getattr(self._wanted, "key", None))
                return forward(*args, **kwargs)

        return run

    def _activate(self, key: str | None) -> None:
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
