"""Describes as JSON what a run's answers depend on, so that a resumed run can check it is the same.
The device and the memory settings are left out, so a run that ran out of memory can be resumed with
less."""

from __future__ import annotations

import hashlib
from pathlib import Path

from _inf.apps import configured_code
from _inf.apps.code_version import depends_on
from _inf.backends.registry import describe
from _inf.config import Config
from _inf.models.resolve import model_folder

ROLLOUT = (
    *("temperature", "top_k", "top_p", "do_sample", "ignore_eos", "prompt_length"),
    *("response_length", "max_model_len", "dtype", "load_format", "engine_kwargs", "multi_turn"),
)
# The files of a config that name code, by how a file of rows names the version of this code.
CODE_FILES = {
    configured_code.OF_TOOLS: "tool_config_path",
    "code of the interactions": "interaction_config_path",
}
# Of a model's file, so many parts of this size, spread evenly, are read; a smaller file is read
# whole. Training changes weights everywhere.
BLOCK, BLOCKS = 1 << 18, 64
# The version of reading lines, writing rows and drawing seeds: increase it when the same file and
# options would give other rows.
FORMAT = 5


def of_config(config: Config) -> dict[str, object]:
    """Describe what the answers of an engine with this config depend on."""
    settings = config.to_dict()
    turns = settings["rollout"]["multi_turn"]
    files = {name: Path(turns[key]) for name, key in CODE_FILES.items() if turns[key]}
    return {
        "format": FORMAT,
        "model": _of_model(config),
        "truncate_prompt": settings["truncate_prompt"],
        "reasoning_parser": settings["reasoning_parser"],
        **{f"rollout.{name}": settings["rollout"][name] for name in ROLLOUT},
        "tools": [of_file(path) for path in files.values()],
        **depends_on(configured_code.of_file(*named_file) for named_file in files.items()),
    }


def _of_model(config: Config) -> str:
    if describe(config).remote:  # a server does not show more of it
        return f"{config.model_path} at {config.base_url}, tokenizer {config.tokenizer_path}"
    return of_model(model_folder(config))


def of_model(folder: Path) -> str:
    """Hash the names and sizes of a model's files and parts of their contents: the same for a copy
    of them, on another machine too, and another one where they were overwritten in place."""
    digest = hashlib.sha256()
    files = (path for path in folder.iterdir() if not path.name.startswith("."))  # of caches
    for path in sorted(path for path in files if path.is_file()):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with open(path, "rb") as file:
            for place in range(0, size, max(BLOCK, size // BLOCKS)):
                file.seek(place)
                digest.update(file.read(BLOCK))
    return digest.hexdigest()


def of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
