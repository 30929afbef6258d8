"""Reads LoRA adapters in PEFT's form, and refuses adapters that must be merged."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from _inf.errors import ConfigError, error_text, shown
from _inf.models.merging import adapter_files

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig

Tensors: TypeAlias = "dict[str, torch.Tensor]"

# Fields of PEFT's `LoraConfig` (0.18) that say what an adapter computes, and those without effect
# on it. All others must have the value that they have in a new one.
_USED = frozenset(
    "r target_modules exclude_modules lora_alpha lora_dropout fan_in_fan_out use_rslora lora_bias"
    " layers_to_transform layers_pattern rank_pattern alpha_pattern".split()
)
_WITHOUT_EFFECT = frozenset(
    "task_type peft_type auto_mapping peft_version base_model_name_or_path revision inference_mode"
    " megatron_core qalora_group_size runtime_config".split()
)
# Of `init_lora_weights`: beginnings of a training that leave the base's weights as they are.
_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")


def adapter_folder(path: Path, key: str) -> Path:
    """Return the folder with PEFT's files: `path`, or the LoRA actor's in a checkpoint of verl's
    (`global_step_N` or its `actor`). Raises `ConfigError` about `key`."""
    inside = [path / "lora_adapter", path / "actor" / "lora_adapter"]
    folder = next((known for known in inside if known.is_dir()), path)
    adapter_files(folder, key)
    return folder


def read_adapter(folder: Path) -> tuple[LoraConfig, Tensors]:
    """Read a folder of PEFT's; raises `ConfigError`."""
    from peft.utils import load_peft_weights

    try:
        config = lora_config(json.loads((folder / "adapter_config.json").read_text("utf-8")))
        return config, load_peft_weights(str(folder), device="cpu")
    except ConfigError:
        raise
    except Exception as failure:
        raise ConfigError(f"{folder} cannot be read: {error_text(failure)}.") from failure


def _is_scale(alpha: object) -> bool:
    return isinstance(alpha, int | float) and math.isfinite(alpha)


def lora_config(given: object) -> LoraConfig:
    """Return the used fields of a PEFT config (PEFT's class or a mapping). Raises `ConfigError` if
    the adapter is not a plain LoRA."""
    from peft import LoraConfig

    fields = given.to_dict() if hasattr(given, "to_dict") else given
    if not isinstance(fields, Mapping):
        raise ConfigError(f"peft_config is {shown(given)}, not PEFT's LoraConfig or a mapping.")
    kind = fields.get("peft_type") or "LORA"
    if (kind := str(getattr(kind, "value", kind))) != "LORA":
        raise ConfigError(f"its PEFT type is {kind}; only LORA can be served without a merge.")
    new = vars(LoraConfig())
    for name, value in fields.items():
        free = name in _USED | _WITHOUT_EFFECT or value in (None, new.get(name), {}, [])
        begins = name == "init_lora_weights" and value in _BEGINNINGS
        # False of a field of a newer PEFT, which is not known here
        if not (free or begins or (name not in new and value is False)):
            raise ConfigError(
                f"its config has {name}: {shown(value)}, which needs a merge: name the adapter as "
                "adapter_path when the engine starts, or merge it with PEFT's merge_and_unload()."
            )
    try:
        config = LoraConfig(**{name: fields[name] for name in _USED & fields.keys()})
    except Exception as failure:
        raise ConfigError(f"PEFT refuses its config: {error_text(failure)}.") from failure
    alphas = [config.lora_alpha, *(config.alpha_pattern or {}).values()]
    rank: object = config.r
    usable = isinstance(rank, int) and rank > 0 and all(map(_is_scale, alphas))
    if not (usable and config.lora_alpha):
        raise ConfigError(
            f"its config has r: {shown(rank)} and lora_alpha: {shown(config.lora_alpha)}, with "
            "which it would change nothing or could not be computed; set the values of its "
            "training."
        )
    return config
