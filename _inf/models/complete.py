"""Says what is missing from the folder of a Transformers model."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

from safetensors import SafetensorError, safe_open

from _inf.errors import ConfigError

_TOKENIZER_FILES = re.compile(
    r"tokenizer\.json|vocab\.(json|txt)|tekken\.json|.*\.(model|tiktoken)|tokenization_\w+\.py"
)
_WEIGHT_FILES = re.compile(
    r"(?!adapter_model|training_args|optimizer|scheduler|rng_state).*\.(safetensors|bin|pt)"
)


def lacking(folder: Path, trust_remote_code: bool = False) -> list[str]:
    """List what a Transformers folder lacks; an interrupted download leaves it incomplete."""
    lacks = []
    try:
        names = {entry.name for entry in folder.iterdir() if entry.exists()}
        weights = sorted(name for name in names if _WEIGHT_FILES.fullmatch(name))
        if "config.json" not in names:
            lacks.append("config.json")
        elif _has_code_of_its_own(folder / "config.json"):
            if trust_remote_code and not any(name.endswith(".py") for name in names):
                lacks.append("its code (*.py)")
        if not weights:
            lacks.append("weights (*.safetensors or *.bin)")
        if not any(map(_TOKENIZER_FILES.fullmatch, names)):
            lacks.append("a tokenizer (tokenizer.json, tokenizer.model or vocab.json)")
        # If there are safetensors, only they are loaded, and a *.bin.index.json does not matter.
        safe = any(name.endswith(".safetensors") for name in weights)
        for index in folder.glob(f"*.{'safetensors' if safe else 'bin'}.index.json"):
            lacks += sorted(set(json.loads(index.read_text())["weight_map"].values()) - names)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError.of("model_path", f"cannot read {folder}: {error}") from None
    return lacks + [f"the end of {name}" for name in weights if _is_cut_short(folder / name)]


def _has_code_of_its_own(config: Path) -> bool:
    """Whether classes of the model are in its folder; "owner/name--file.Class" is another one's."""
    named = json.loads(config.read_text(encoding="utf-8")).get("auto_map") or {}
    classes = [name for each in named.values() for name in (each if type(each) is list else [each])]
    return any(name is not None and "--" not in name for name in classes)


def _is_cut_short(file: Path) -> bool:
    """Whether a safetensors file is shorter than its header says; raises for tar archives.

    SGLang 0.5.9 (`model_loader/weight_utils.py`, `_load_pt_file`) unpickles the tar archives of
    PyTorch before 0.4 without `weights_only`: any code in them would run.
    """
    if file.suffix != ".safetensors":
        if tarfile.is_tarfile(file):
            raise ConfigError(
                f"model_path: {file} is in PyTorch's old tar format, which can run code when it is "
                "loaded; save it as safetensors"
            )
        return False
    try:
        with safe_open(file, framework="np"):
            return False
    except (SafetensorError, OSError):
        return True
