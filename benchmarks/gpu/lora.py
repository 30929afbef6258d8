"""Rows with LoRA adapters, on the engine of `training`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from results import Skip
from setting import GREEDY, PROMPTS, Setting
from training import MEAN, mean_difference

RANK, LARGE = 8, 0.05  # of an adapter's matrices; their standard deviation


def rows_have_their_adapters(setting: Setting) -> Any:
    """Two adapters and none in one call, beside the backend `hf` with the same adapters."""
    from inf import InferenceEngine

    engine = setting.engine()
    if "adapters" not in engine.supports:
        raise Skip("no engine runs that has adapters")
    names = ["one", "two", None, "two"]
    folders = {name: adapter(setting, seed) for seed, name in enumerate(("one", "two"))}
    rollout = {"name": "hf", "dtype": "bfloat16"}
    with InferenceEngine(
        model_path=str(setting.model), device=setting.device, rollout=rollout
    ) as reference:
        for name, folder in folders.items():
            for each in (engine, reference):
                each.load_adapter(name, str(folder))
        output = engine.generate(PROMPTS, adapter=names, **GREEDY)
        off = {}
        for scorer in (*folders, None):
            own = [place for place, name in enumerate(names) if name == scorer]
            rows = [output[place] for place in own]
            truth = reference.get_logprobs(
                [PROMPTS[place] for place in own], [row.token_ids for row in rows], adapter=scorer
            )
            off[str(scorer)] = mean_difference([row.logprobs for row in rows], truth)
    plain = engine.get_logprobs(PROMPTS, output.token_ids)
    for name in folders:
        engine.unload_adapter(name)
    changed = mean_difference(output.logprobs[:2], plain[:2])
    assert max(off.values()) <= MEAN, f"away from Transformers: {off}"
    assert changed > 2 * MEAN, f"adapters change log probs by {changed} only"
    return {"mean_differences": off, "changed_by_the_adapters": changed}


def adapter(setting: Setting, seed: int) -> Path:
    """A random PEFT folder for the queries' and the last projection of each layer."""
    import torch
    from safetensors.torch import save_file

    shape = json.loads((setting.model / "config.json").read_text())
    hidden, inner = shape["hidden_size"], shape["num_attention_heads"] * shape["head_dim"]
    sizes = {
        "self_attn.q_proj": (hidden, inner),
        "mlp.down_proj": (shape["intermediate_size"], hidden),
    }
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(shape["num_hidden_layers"]):
        for module, (read, written) in sizes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            for matrix, size in {"A": (RANK, read), "B": (written, RANK)}.items():
                drawn = LARGE * torch.randn(size, generator=generator)
                weights[f"{name}.lora_{matrix}.weight"] = drawn
    folder = setting.work / f"adapter-{seed}"
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    modules = [module.rpartition(".")[2] for module in sizes]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


CHECKS = (rows_have_their_adapters,)
