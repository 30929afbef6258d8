"""Adapters that cannot be served are refused by their name before anything of them is loaded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from _inf.backends.loaded_adapters import NewAdapter
from _inf.backends.new_adapters import checked
from _inf.backends.new_weights import without_weights
from _inf.errors import ConfigError
from tests.support.refusals import refused
from tests.support.tiny import tiny_model
from tests.support.trained import adapter


def new(weights: object, peft_config: object = None, base: Path | None = None) -> NewAdapter:
    config = AutoConfig.from_pretrained(base or tiny_model())
    return checked("new", weights, peft_config, None, lambda: without_weights(config, False))


PLAIN = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
Q = "base_model.model.model.layers.{}.self_attn.q_proj.lora_{}.weight"


def tensors_of(**changed: torch.Tensor) -> dict[str, torch.Tensor]:
    shapes = {"A": (4, 64), "B": (64, 4)}
    return {
        Q.format(layer, part): changed.get(part, torch.zeros(shape))
        for layer in (0, 1)
        for part, shape in shapes.items()
    }


# By what is wrong: the arguments of load_adapter after the name, and what is said of it.
BROKEN = {
    "no path": (lambda: ("a\0b", None), r"'a\\x00b' is not a folder: ValueError"),
    "no config": (lambda: (tensors_of(), None), "give the adapter's peft_config"),
    "dora": (lambda: (tensors_of(), PLAIN | {"use_dora": True}), "use_dora: True.*adapter_path"),
    "head": (
        lambda: (tensors_of(), PLAIN | {"modules_to_save": ["lm_head"]}),
        "modules_to_save: .*needs a merge",
    ),
    "unknown": (lambda: (tensors_of(), PLAIN | {"use_next": True}), "use_next: True"),
    "kind": (lambda: ({}, {"peft_type": "LOHA"}), "PEFT type is LOHA"),
    "nothing": (lambda: (tensors_of(), PLAIN | {"lora_alpha": 0}), "would change nothing"),
    "text": (lambda: (tensors_of(), PLAIN | {"r": "4"}), "its config has r: '4'"),
    "no number": (
        lambda: (tensors_of(), PLAIN | {"lora_alpha": math.nan}),
        "lora_alpha: nan, with which .* could not be computed",
    ),
    "modules": (
        lambda: (tensors_of(), PLAIN | {"target_modules": ["wq"]}),
        "Target modules .* not found",
    ),
    "other model": (
        lambda: (tensors_of(A=torch.zeros(4, 32)), PLAIN),
        r"q_proj.lora_A.weight has the shape \(4, 32\), and an adapter with this config on this",
    ),
    "nan": (lambda: (tensors_of(A=torch.full((4, 64), torch.nan)), PLAIN), "holds NaN"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_adapter_that_cannot_be_served_is_refused_by_what_is_wrong(what):
    make, words = BROKEN[what]
    with refused(ConfigError, "^adapters.new: .*" + words, key="adapters.new"):
        new(*make())


def test_embeddings_that_are_the_head_too_take_no_adapter(tmp_path):
    tied = tiny_model(tied=True)
    embeddings = adapter(tied, tmp_path / "embeddings", target_modules=["embed_tokens"])
    with refused(ConfigError, "it must be merged", key="adapters.new"):
        new(embeddings, base=tied)
    assert new(adapter(tied, tmp_path / "queries"), base=tied).tensors
