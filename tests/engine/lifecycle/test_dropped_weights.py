"""Weights that a model class of SGLang's drops, told whatever way the class goes through them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import pytest
import torch
from transformers import AutoConfig

from tests.support.tiny import tiny_model
from tests.support.trained import loaded

pytestmark = pytest.mark.verl

Weights = Iterable[tuple[str, torch.Tensor]]
HEAD, EMBEDDINGS = "lm_head.weight", "model.embed_tokens.weight"


@pytest.fixture(autouse=True)
def sglang(tiny):
    """Only after an engine's start can SGLang be imported on a CPU."""


class Model(torch.nn.Module):
    """As SGLang's are: one parameter a weight, but for those in `lost`."""

    def __init__(self, read: Callable[[Weights], Weights], lost: Collection[str] = ()) -> None:
        from _inf.backends.verl.child.weight_loading import DroppedWeights

        super().__init__()
        self.config = AutoConfig.from_pretrained(tiny_model("llama"))
        self.read = read
        shapes = {n: t.shape for n, t in weights() if n not in lost}
        self.own = torch.nn.ParameterDict(
            {name.replace(".", "/"): torch.empty(shape) for name, shape in shapes.items()}
        )
        DroppedWeights(self, trust_remote_code=False).watch()

    def load_weights(self, given: Weights) -> None:
        from sglang.srt.model_loader.weight_utils import default_weight_loader

        for name, weight in self.read(given):
            if (key := name.replace(".", "/")) in self.own:
                parameter = self.own[key]
                load = getattr(parameter, "weight_loader", default_weight_loader)
                load(parameter, weight)


def weights() -> list[tuple[str, torch.Tensor]]:
    return list(loaded(tiny_model("llama"), dtype=torch.float32).state_dict().items())


WAYS: dict[str, Callable[[Weights], Weights]] = {
    "one by one": lambda given: given,
    "all first, in another order": lambda given: reversed(list(given)),
    "as views": lambda given: ((name, tensor.t().t()) for name, tensor in given),
}


@pytest.mark.parametrize("way", WAYS)
def test_dropped_weight_is_named_and_a_whole_model_is_not_complained_of(way):
    from _inf.backends.verl.child.weight_loading import WeightsNotTaken

    whole, lossy = Model(WAYS[way]), Model(WAYS[way], {HEAD, EMBEDDINGS})
    whole.load_weights([("model.rotary_emb.inv_freq", torch.ones(8)), *weights()])  # not a weight
    whole.load_weights(weights()[:3])  # an update comes in parts
    with pytest.raises(WeightsNotTaken, match=f"Model has no place for {EMBEDDINGS}, {HEAD}"):
        lossy.load_weights(weights())
    with pytest.raises(WeightsNotTaken, match=f"no place for {HEAD}$"):
        lossy.load_weights(weights()[-1:])


def test_model_that_loads_copies_is_left_to_the_check_of_unset_parameters():
    """SGLang's DeepSeek concatenates two weights, and a copy does not say of what."""
    fused = Model(lambda given: ((name, tensor.clone()) for name, tensor in given if name != HEAD))
    fused.load_weights(weights())
