"""verl's checkpoints and PEFT's adapters are converted to folders that can be served."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from _inf.errors import ConfigError
from _inf.models.resolve import resolve_model
from tests.support.refusals import refused
from tests.support.tiny import tiny_model
from tests.support.trained import adapter, loaded, verl_checkpoint

IDS = torch.arange(5, 60)[None]
SHARD = "model_world_size_1_rank_0.pt"
DOWN = "model.layers.1.mlp.down_proj.weight"


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    return model(IDS).logits


@pytest.fixture(scope="module", autouse=True)
def cache_of_its_own(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        tiny_model()  # where it is shared
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module", params=[1, 2], ids=["fsdp1", "fsdp2"])
def checkpoint(request, tmp_path_factory):
    """The folder `global_step_7`, and the weights that were saved in it."""
    step = tmp_path_factory.mktemp("run") / "global_step_7"
    return step, verl_checkpoint(step, fsdp=request.param)


@pytest.mark.verl
def test_verl_checkpoint_is_merged_once_into_the_weights_that_were_saved(
    checkpoint, capfd, monkeypatch
):
    step, weights = checkpoint
    folder = resolve_model(str(step / "actor"))
    assert capfd.readouterr().out == ""
    merged = loaded(folder, dtype="auto").state_dict()
    assert merged.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(merged[name], tensor.bfloat16()), name
    tokenizer, its = (AutoTokenizer.from_pretrained(place) for place in (tiny_model(), folder))
    assert its.get_vocab() == tokenizer.get_vocab()
    assert its.chat_template == tokenizer.chat_template
    ends = loaded(tiny_model()).generation_config.eos_token_id
    assert loaded(folder).generation_config.eos_token_id == ends
    monkeypatch.setattr("_inf.models.merging.write_merged", None)
    assert resolve_model(str(step)) == folder == resolve_model(str(step / "actor"))
    with refused(ConfigError, "several .*name one of global_step_7$", key="model_path"):
        resolve_model(str(step.parent))


@pytest.mark.verl
def test_checkpoint_written_anew_is_merged_anew(checkpoint, tmp_path):
    step = shutil.copytree(checkpoint[0], tmp_path / "step")
    first = resolve_model(str(step))
    shards = step / "actor" / SHARD
    state = torch.load(shards, weights_only=False)
    for tensor in state.values():
        getattr(tensor, "_local_tensor", tensor).zero_()
    torch.save(state, shards)
    second = resolve_model(str(step))
    assert second != first
    assert not any(tensor.any() for tensor in loaded(second).parameters())


RANKS = '{"FSDP_version": 1, "world_size": 2}'
LORA = {"base_model.model.model.norm.lora_A.default.weight": torch.zeros(4, 64)}
# What is done to the checkpoint's folder or to its weights, and what is said of it.
DAMAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "rank": (
        lambda actor: (actor / "fsdp_config.json").write_text(RANKS),
        "cannot be merged: FileNotFoundError: .*model_world_size_2_rank_0.pt",
    ),
    "adapter": (
        lambda actor: (actor / "lora_adapter").mkdir(),
        "LoRA actor's checkpoint; name the model .* adapter_path: .*lora_adapter",
    ),
    "tokenizer": (
        lambda actor: (actor / "huggingface" / "tokenizer_config.json").unlink(),
        "lacks huggingface/tokenizer_config.json",
    ),
}
OTHER_WEIGHTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "weight": (lambda state: state.pop(DOWN), "cannot be merged: 1 missing keys, " + DOWN),
    "lora": (lambda state: state.update(LORA), "LoRA actor's"),
}


@pytest.mark.verl
@pytest.mark.parametrize("checkpoint", [2], indirect=True)
@pytest.mark.parametrize("how", [*DAMAGES, *OTHER_WEIGHTS])
def test_damaged_checkpoint_is_refused(checkpoint, tmp_path, how):
    step = shutil.copytree(checkpoint[0], tmp_path / "step")
    damage, words = (DAMAGES | OTHER_WEIGHTS)[how]
    if how in DAMAGES:
        damage(step / "actor")
    else:
        state = torch.load(step / "actor" / SHARD, weights_only=False)
        damage(state)
        torch.save(state, step / "actor" / SHARD)
    with refused(ConfigError, words, key="model_path"):
        resolve_model(str(step))


def test_adapter_is_merged_into_its_base_once(tmp_path, monkeypatch):
    # This takes seconds, which the other tests do not wait for.
    from peft import PeftModel

    base = tiny_model()
    peft = adapter(base, tmp_path / "adapter")
    folder = resolve_model(str(base), adapter_path=str(peft))
    theirs = logits(PeftModel.from_pretrained(loaded(base), str(peft)).eval())
    ours = logits(loaded(folder, dtype="auto"))
    assert (theirs - logits(loaded(base))).abs().max() > 0.1
    assert torch.allclose(ours, theirs, atol=1e-4)
    names = {file.name for file in base.iterdir()}
    assert {name for name in names if name[0] != "."} <= {file.name for file in folder.iterdir()}
    monkeypatch.setattr("_inf.models.merging.write_adapted", None)
    assert resolve_model(str(base), adapter_path=str(peft)) == folder
    assert resolve_model(str(base)) == base


def mismatched(base: Path, folder: Path, how: str) -> Path:
    from safetensors.torch import load_file, save_file

    adapter(base, folder)
    file, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    weights, settings = load_file(file), json.loads(config.read_text())
    some = next(name for name in weights if "layers.0.mlp.down_proj.lora_A" in name)
    match how:
        case "no folder":
            return folder / "nowhere"
        case "shape":
            weights[some] = torch.zeros(4, 64)
        case "lacking":
            del weights[some]
        case "surplus":
            weights[some.replace("layers.0", "layers.7")] = weights[some].clone()
        case "newer":
            settings["own_config"] = {"beta": 0.1}  # as PEFT 0.21 has kasa_config
        case "kind":
            settings = {"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM"}
            settings |= {"num_virtual_tokens": 4, "base_model_name_or_path": None}
    save_file(weights, file)
    config.write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no folder", "is not a PEFT folder"),
        ("shape", "does not fit .*size mismatch"),
        ("lacking", "it lacks 1 of its weights, .*layers.0.mlp.down_proj.lora_A"),
        ("surplus", "the base has no place for 1 of its weights, .*layers.7"),
        ("newer", r"its config has own_config: .*, which PEFT 0\.\d+\.\d+ does not know"),
        ("kind", "nothing to merge"),
    ],
)
def test_adapter_that_does_not_fit_is_refused(tmp_path, how, words):
    base = tiny_model()
    peft = mismatched(base, tmp_path / "adapter", how)
    with refused(ConfigError, words, key="adapter_path"):
        resolve_model(str(base), adapter_path=str(peft))
