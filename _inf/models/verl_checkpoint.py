"""Converts a checkpoint of verl's FSDP trainer into a Transformers folder in bfloat16, as verl.

In: the folder with `fsdp_config.json`, `model_world_size_W_rank_R.pt` for each rank, and
`huggingface/` (config and tokenizer). verl's own `FSDPModelMerger` does the work; the shards are
pickles, so they must come from a trusted source. It corrects verl 0.6.1 (`model_merger/`), which
prints progress on stdout, drops shards that are not DTensors except the first rank's, and writes
the base of a LoRA actor as if it were the trained model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _inf.errors import ConfigError

FSDP_CONFIG = "fsdp_config.json"


def shards(actor: Path) -> list[Path]:
    """Return the files of an actor's checkpoint."""
    if (adapter := actor / "lora_adapter").is_dir():
        raise ConfigError(
            f"model_path: {actor} is a LoRA actor's; name the model that it started from, and "
            f"adapter_path: {adapter}"
        )
    if not (actor / "huggingface" / "tokenizer_config.json").is_file():
        raise ConfigError.of("model_path", f"{actor} lacks huggingface/tokenizer_config.json")
    return [actor / FSDP_CONFIG, *sorted(actor.glob("*.pt")), *(actor / "huggingface").iterdir()]


def write_merged(actor: Path, folder: Path, trust_remote_code: bool) -> None:
    """Merge `actor`'s shards into the existing, empty `folder`."""
    from verl.model_merger import base_model_merger, fsdp_model_merger
    from verl.model_merger.base_model_merger import ModelMergerConfig

    for module in (base_model_merger, fsdp_model_merger):
        module.print = lambda *args, **kwargs: None
    fsdp_model_merger.tqdm = lambda shards, **kwargs: shards
    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(actor),
        target_dir=str(folder),
        hf_model_config_path=str(actor / "huggingface"),
        trust_remote_code=trust_remote_code,
    )
    fsdp_model_merger.FSDPModelMerger(config).merge_and_save()
    check_whole(folder, trust_remote_code)


def check_whole(folder: Path, trust_remote_code: bool) -> None:
    """Raise if weights are missing: Transformers and SGLang would use random ones instead."""
    from transformers import AutoModelForCausalLM

    report: dict[str, Any]
    _, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", trust_remote_code=trust_remote_code, output_loading_info=True
    )
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, report[fault])):
            raise ValueError(f"{len(names)} {fault.replace('_', ' ')}, {names[0]} first")
    if (folder / "lora_adapter").exists():
        raise ValueError("it is a LoRA actor's, without the adapter's alpha; save it with verl's")
