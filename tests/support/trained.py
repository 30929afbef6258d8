"""Makes trained weights for tests: a checkpoint of verl's FSDP trainer, a PEFT adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.tiny import tiny_model


def loaded(folder: Path | str, **how: Any) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, **how).eval()


def train(model: Any, seed: int) -> None:
    """Change every weight, as training does."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def verl_checkpoint(step: Path, fsdp: int) -> dict[str, torch.Tensor]:
    """Write the checkpoint folder `step`; return the weights saved in it."""
    model = loaded(tiny_model())
    train(model, seed=fsdp)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
    save_as_verl_does(model, tokenizer, step / "actor", fsdp)
    return weights


def save_as_verl_does(model: Any, tokenizer: Any, folder: Path, fsdp: int) -> None:
    from omegaconf import OmegaConf
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
    if fsdp == 1:
        sharded = FullyShardedDataParallel(
            model, device_mesh=mesh, device_id=torch.device("cpu"), use_orig_params=True
        )
    else:
        sharded = fully_shard(model, mesh=mesh)
    contents = OmegaConf.create(dict.fromkeys(("save_contents", "load_contents"), ["model"]))
    manager = FSDPCheckpointManager(sharded, None, None, tokenizer, checkpoint_config=contents)
    manager.save_checkpoint(str(folder), global_step=7)


def adapter(
    base: Path,
    folder: Path,
    *,
    seed: int = 5,
    scale: float = 0.2,
    save: dict[str, Any] | None = None,
    **how: Any,
) -> Path:
    """Write a LoRA adapter with nonzero weights, of that standard deviation. save: keywords of
    `save_pretrained`."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(loaded(base), LoraConfig(**settings | how))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder, **save or {})
    return folder
