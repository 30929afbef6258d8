"""Describes as JSON what a run's answers depend on, so that a resumed run can check it is the same.

In: a config, files. Out: dicts and digests. The device and the memory settings are left out, so a
run that ran out of memory can be resumed with less.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from _inf.config import Config
from _inf.models.resolve import resolve_model

ROLLOUT = (
    *("temperature", "top_k", "top_p", "do_sample", "ignore_eos", "prompt_length"),
    *("response_length", "max_model_len", "dtype", "load_format", "engine_kwargs", "multi_turn"),
)
END = 1 << 20
# The version of reading lines, writing rows and drawing seeds: increase it when the same file and
# options would give other rows.
FORMAT = 3


def of_config(config: Config) -> dict[str, Any]:
    """Describe what the answers of an engine with this config depend on."""
    settings = config.to_dict()
    turns = settings["rollout"]["multi_turn"]
    files = [turns[name] for name in ("tool_config_path", "interaction_config_path")]
    return {
        "format": FORMAT,
        "model": _of_model(config),
        "truncate_prompt": settings["truncate_prompt"],
        **{f"rollout.{name}": settings["rollout"][name] for name in ROLLOUT},
        "tools": [of_file(Path(path)) for path in files if path],
    }


def _of_model(config: Config) -> str:
    if config.rollout.name == "openai":  # a server does not show more of it
        return f"{config.model_path} at {config.base_url}, tokenizer {config.tokenizer_path}"
    folder = resolve_model(config.model_path, config.adapter_path, config.trust_remote_code)
    return of_model(folder)


def of_model(folder: Path) -> str:
    """Hash the names, sizes, beginnings and ends of a model's files."""
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if path.name.startswith("."):  # files of our cache and of the Hub
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with open(path, "rb") as file:
            digest.update(file.read(END))
            file.seek(max(0, size - END))
            digest.update(file.read(END))
    return digest.hexdigest()


def of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(END):
            digest.update(block)
    return digest.hexdigest()
