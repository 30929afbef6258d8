"""What a run's answers depend on, as plain JSON, so that a resumed run can tell it is the same.

In: a config, a model's folder, files. Out: dicts. Where an engine runs and how fast is not part of
it: a run that ran out of memory goes on with less.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _inf.config import Config
    from inf import InferenceEngine

ROLLOUT = (
    "temperature",
    "top_k",
    "top_p",
    "do_sample",
    "ignore_eos",
    "prompt_length",
    "response_length",
    "max_model_len",
    "dtype",
    "load_format",
    "engine_kwargs",
    "multi_turn",
)
END = 1 << 20
# Of how lines are read and seeds are drawn: one more wherever the same file and options would give
# other jobs or other answers.
FORMAT = 2


def of_engine(engine: InferenceEngine) -> dict[str, Any]:
    """Of a running one."""
    return of(engine.config, Path(engine.model_config.local_path))


def of(settings: Config, folder: Path) -> dict[str, Any]:
    """The model by its files' sizes, beginnings and ends, and what of the config counts."""
    config = settings.to_dict()
    turns = config["rollout"]["multi_turn"]
    files = [turns[name] for name in ("tool_config_path", "interaction_config_path")]
    return {
        "format": FORMAT,
        "model": of_folder(folder),
        "truncate_prompt": config["truncate_prompt"],
        **{f"rollout.{name}": config["rollout"][name] for name in ROLLOUT},
        "tools": [of_file(Path(path)) for path in files if path],
    }


def of_folder(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if path.name.startswith("."):  # our cache's and the Hub's own notes
            continue
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with open(path, "rb") as file:
            digest.update(file.read(END))
            file.seek(max(0, size - END))
            digest.update(file.read(END))
    return digest.hexdigest()


def of_file(path: Path, size: int | None = None) -> str:
    """The sha256 of its first `size` bytes."""
    digest = hashlib.sha256()
    left = path.stat().st_size if size is None else size
    with open(path, "rb") as file:
        while left and (block := file.read(min(left, END))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
