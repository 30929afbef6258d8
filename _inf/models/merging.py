"""Merges into one Transformers folder: a PEFT adapter with its base, or the shards of a checkpoint
of verl's FSDP trainer. Missing or unknown weights raise an exception.

It corrects that verl 0.6.1 (`model_merger/`) prints progress on stdout, drops shards that are not
DTensors except the first rank's, and writes the base of a LoRA actor as if it were the trained
model. Shards are pickles, so they must come from a trusted source.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from _inf.errors import ConfigError, shown
from _inf.runtime.extras import require_verl


def adapter_files(adapter: Path, key: str = "adapter_path") -> list[Path]:
    """Return PEFT's files in a folder, its config first."""
    weights = [adapter / f"adapter_model.{kind}" for kind in ("safetensors", "bin")]
    files = [file for file in (adapter / "adapter_config.json", *weights) if file.is_file()]
    if len(files) < 2:
        raise ConfigError(
            f"{key}: {adapter} is not a PEFT folder: it must hold adapter_config.json and "
            "adapter_model.safetensors",
            key=key,
        )
    return files


def write_adapted(
    base: Path, others: Sequence[Path], adapter: Path, folder: Path, trust_remote_code: bool
) -> None:
    """Merge an adapter in its base's dtype; `others`: the base's files except its weights."""
    from peft import PeftConfig, PeftModel, __version__

    model, report = _loaded(base, trust_remote_code)
    if report["missing_keys"]:
        raise ValueError(f"the base lacks {sorted(report['missing_keys'])[0]}")
    config = PeftConfig.from_pretrained(str(adapter))
    fields = json.loads((adapter / "adapter_config.json").read_text("utf-8"))
    if newer := [name for name, value in fields.items() if value and not hasattr(config, name)]:
        raise ValueError(  # PEFT itself would leave it out with a warning
            f"its config has {newer[0]}: {shown(fields[newer[0]])}, which PEFT {__version__} does "
            "not know; merge it with the PEFT that made it, and name the result as model_path"
        )
    if config.is_prompt_learning:
        raise ValueError(
            f"{config.peft_type} changes the prompt, not the weights: nothing to merge"
        )
    adapted = PeftModel(model, config)
    loaded = adapted.load_adapter(str(adapter), "default", torch_device="cpu")
    if names := loaded.unexpected_keys:
        raise ValueError(f"the base has no place for {len(names)} of its weights, e.g. {names[0]}")
    if names := loaded.missing_keys:
        raise ValueError(f"it lacks {len(names)} of its weights, e.g. {names[0]}")
    for file in others:
        shutil.copy(file, folder)
    adapted.merge_and_unload(safe_merge=True).save_pretrained(folder)


def shards(actor: Path) -> list[Path]:
    """Return the files of an actor's checkpoint: `fsdp_config.json`, the ranks' shards, and
    `huggingface/` with the config and the tokenizer."""
    if (adapter := actor / "lora_adapter").is_dir():
        raise ConfigError(
            f"model_path: {actor} is a LoRA actor's checkpoint; name the model that it started "
            f"from, and adapter_path: {adapter}"
        )
    if not (actor / "huggingface" / "tokenizer_config.json").is_file():
        raise ConfigError.of("model_path", f"{actor} lacks huggingface/tokenizer_config.json")
    return [
        actor / "fsdp_config.json",
        *sorted(actor.glob("*.pt")),
        *sorted((actor / "huggingface").iterdir()),
    ]


def write_merged(actor: Path, folder: Path, trust_remote_code: bool) -> None:
    """Merge `actor`'s shards in bfloat16, as verl does."""
    require_verl("model_path")
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
    _, report = _loaded(folder, trust_remote_code)
    for fault in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, report[fault])):
            raise ValueError(f"{len(names)} {fault.replace('_', ' ')}, {names[0]} first")
    if (folder / "lora_adapter").exists():
        raise ValueError("it is a LoRA actor's, without the adapter's alpha; save it with verl's")


def _loaded(folder: Path, trust_remote_code: bool) -> tuple[Any, Mapping[str, Any]]:
    """Load a model, and what Transformers reports: missing weights would be random ones."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", trust_remote_code=trust_remote_code, output_loading_info=True
    )
    return model, report
