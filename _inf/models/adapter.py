"""Merges a PEFT adapter into a base model: two folders in, one model folder out.

PEFT merges them in the base's dtype. Adapter weights that do not fit the base, or are missing, are
an exception. Knows nothing of caches. It corrects that PEFT
(0.21, `import_utils.py`) refuses the torchao that sglang 0.5.9 pins, although it needs torchao only
for models that torchao quantized.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _inf.errors import ConfigError


def adapter_files(adapter: Path) -> list[Path]:
    """Return the files of a PEFT folder."""
    weights = [adapter / f"adapter_model.{kind}" for kind in ("safetensors", "bin")]
    files = [file for file in (adapter / "adapter_config.json", *weights) if file.is_file()]
    if len(files) < 2:
        raise ConfigError(
            f"adapter_path: {adapter} is not a PEFT folder: it must hold adapter_config.json and "
            "adapter_model.safetensors"
        )
    return files


def write_adapted(
    base: Path, others: Sequence[Path], adapter: Path, folder: Path, trust_remote_code: bool
) -> None:
    """Merge into the existing, empty `folder`; `others`: the base's files except its weights."""
    merged = _merged(base, adapter, trust_remote_code)
    for file in others:
        shutil.copy(file, folder)
    merged.save_pretrained(folder)


def _merged(base: Path, adapter: Path, trust_remote_code: bool) -> Any:
    from peft import PeftConfig, PeftModel
    from peft.tuners.lora import torchao
    from peft.utils import quantization_utils
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(
        base, dtype="auto", trust_remote_code=trust_remote_code, output_loading_info=True
    )
    if report["missing_keys"]:
        raise ValueError(f"the base lacks {sorted(report['missing_keys'])[0]}")
    for module in (torchao, quantization_utils):
        setattr(module, "is_torchao_available", lambda: False)  # noqa: B010
    config = PeftConfig.from_pretrained(str(adapter))
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
    return adapted.merge_and_unload(safe_merge=True)
