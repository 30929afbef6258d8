"""Checks a whole LoRA adapter for a running engine before any of it is loaded."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from _inf.backends import new_weights
from _inf.backends.loaded_adapters import NewAdapter
from _inf.backends.new_weights import ExpectedWeights
from _inf.errors import ConfigError, error_text, shown
from _inf.models.adapters import adapter_folder, lora_config, read_adapter

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel

_MODEL = "base_model.model."  # where the model is in PEFT's


@dataclasses.dataclass(frozen=True)
class AdapterForm:
    """PEFT's config, and the tensors that an adapter with it has on the engine's model."""

    config: LoraConfig
    expected: ExpectedWeights


def checked(
    name: str,
    weights: object,
    peft_config: object,
    known: AdapterForm | None,
    build: Callable[[], PreTrainedModel],
    own: Mapping[str, torch.Tensor] | None = None,
) -> NewAdapter:
    """Return an adapter's form and its tensors; raises `ConfigError` about `adapters.NAME`.

    weights: a folder, or as in `update_weights`. known: the form of the adapter that it replaces.
    build: returns the engine's model without weights. own: its weights by name: PEFT saves those
    that an adapter of the embeddings or the head is added to, beside the adapter.
    """
    key = f"adapters.{name}"
    try:
        config, weights = _read(key, weights, peft_config, known)
        form = known
        if form is None or form.config != config:
            form = AdapterForm(config, expected_weights(config, build))
    except ConfigError as failure:
        if failure.key is not None:
            raise
        raise ConfigError.of(key, str(failure)) from failure.__cause__
    expected = dataclasses.replace(form.expected, own=_as_saved(own or {}))
    tensors = new_weights.checked(weights, expected, key)
    return NewAdapter(form, {name: new_weights.whole(tensor) for name, tensor in tensors})


def _as_saved(own: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A model's weights by the names that PEFT saves them with."""
    saved = {}
    for name, tensor in own.items():
        module, _, leaf = name.rpartition(".")
        saved[f"{_MODEL}{name}"] = saved[f"{_MODEL}{module}.base_layer.{leaf}"] = tensor
    return saved


def _read(
    key: str, weights: object, peft_config: object, known: AdapterForm | None
) -> tuple[LoraConfig, object]:
    if isinstance(weights, str | os.PathLike):
        if peft_config is not None:
            raise ConfigError("leave peft_config out: the folder has its own.")
        try:
            folder = adapter_folder(Path(weights).expanduser().resolve(), key)
        except (OSError, ValueError, RuntimeError) as failure:  # not of a path that can be
            if isinstance(failure, ConfigError):
                raise
            raise ConfigError(
                f"{shown(weights)} is not a folder: {error_text(failure)}."
            ) from failure
        return read_adapter(folder)
    if peft_config is not None:
        return lora_config(peft_config), weights
    if known is None:
        raise ConfigError(
            "a state dict does not say its rank and alpha; give the adapter's peft_config, "
            "PEFT's LoraConfig or a mapping, when a name is loaded first."
        )
    return known.config, weights


def expected_weights(config: LoraConfig, build: Callable[[], PreTrainedModel]) -> ExpectedWeights:
    """What PEFT would save of an adapter with this config on the model that `build` returns;
    allocates nothing."""
    from peft import PeftModel, get_peft_model_state_dict

    with torch.device("meta"):
        model = build()
        try:
            adapted = PeftModel(model, copy.deepcopy(config))
        except Exception as failure:
            raise ConfigError(
                f"PEFT cannot add it to this model: {error_text(failure)}."
            ) from failure
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    if model.config.tie_word_embeddings and any(hasattr(end, "base_layer") for end in ends):
        raise ConfigError(
            "it changes the embeddings, which this model also uses as its head, so it must be "
            "merged: name it as adapter_path when the engine starts."
        )
    save: Any = get_peft_model_state_dict  # without types in PEFT 0.18
    state = save(adapted, save_embedding_layers=False)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    return ExpectedWeights(shapes, what="an adapter with this config on this model")
