"""An adapter as SGLang is sent it changes each weight as PEFT's merge does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from _inf.backends import new_weights
from _inf.backends.verl.adapters import GROUPS, sglang_tensors
from _inf.models.adapters import read_adapter
from inf import ConfigError
from tests.support.tiny import tiny_model
from tests.support.trained import adapter, loaded

pytestmark = pytest.mark.verl

TWO_RANKS: dict[str, Any] = {
    "r": 6,
    "target_modules": ["v_proj", "gate_proj", "down_proj"],
    "rank_pattern": {"gate_proj": 2},
    "alpha_pattern": {"layers.1.mlp.down_proj": 5},
}


@pytest.mark.parametrize(
    "how", [{}, {"use_rslora": True}, TWO_RANKS, {"target_modules": ["k_proj", "up_proj"]}]
)
def test_products_are_the_changes_that_pefts_merge_makes(
    how: dict[str, Any], tmp_path: Path
) -> None:
    folder = adapter(tiny_model(), tmp_path / "adapter", **how)
    base = loaded(tiny_model())
    plain = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    shapes = new_weights.weights_of(base).shapes
    config, tensors = read_adapter(folder)
    sent, rank = sglang_tensors("adapters.a", config, tensors, shapes), how.get("r", 4)
    merged = PeftModel.from_pretrained(base, str(folder)).merge_and_unload().state_dict()
    # SGLang 0.5.9 joins these by the name of the first, and dies of another one alone.
    leaves = {name.split(".")[-3] for name in sent}
    assert all(leaves.isdisjoint(group) or leaves.issuperset(group) for group in GROUPS)
    products = {}
    for name, inner in sent.items():
        if name.endswith("lora_A.weight"):
            outer = sent[name.replace("lora_A", "lora_B")]
            assert len(inner) == outer.shape[1] == rank
            module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            products[f"{module}.weight"] = outer @ inner
    for name, weight in plain.items():
        change = products.pop(name, torch.zeros(()))
        torch.testing.assert_close(merged[name], weight + change, rtol=1e-5, atol=1e-5)
    assert not products


def test_adapter_of_the_head_is_refused(tmp_path: Path) -> None:
    folder = adapter(tiny_model(), tmp_path / "a", target_modules=["lm_head"])
    config, tensors = read_adapter(folder)
    own = {name: tensor for name, tensor in tensors.items() if "lora_" in name}
    with pytest.raises(ConfigError, match=r"adapters\.a: it has .*lm_head\.lora_A.*hf serves it"):
        sglang_tensors("adapters.a", config, own, {})
