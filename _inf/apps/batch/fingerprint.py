"""Describes as JSON what a run's answers depend on, so that a resumed run can check it is the same.
The device and the memory settings are left out, so a run that ran out of memory can be resumed with
less."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from _inf.apps import configured_code
from _inf.apps.code_version import depends_on
from _inf.backends.registry import describe
from _inf.config import Config
from _inf.errors import ConfigError
from _inf.models.cache import cache_root
from _inf.models.resolve import model_folder

ROLLOUT = (
    *("temperature", "top_k", "top_p", "do_sample", "ignore_eos", "prompt_length"),
    *("response_length", "max_model_len", "dtype", "load_format", "engine_kwargs", "multi_turn"),
)
OF_ROWS = ("reasoning_parser",)  # if it is set: files are older than the key
# The files of a config that name code, by how a file of rows names the version of this code.
CODE_FILES = {
    configured_code.OF_TOOLS: "tool_config_path",
    "code of the interactions": "interaction_config_path",
}
BLOCK = 1 << 22
READERS = 8
# The version of reading lines, writing rows and drawing seeds: increase it when the same file and
# options would give other rows.
FORMAT = 4


def of_config(config: Config) -> dict[str, Any]:
    """Describe what the answers of an engine with this config depend on."""
    settings = config.to_dict()
    turns = settings["rollout"]["multi_turn"]
    files = {name: Path(turns[key]) for name, key in CODE_FILES.items() if turns[key]}
    return {
        "format": FORMAT,
        "model": _of_model(config),
        "truncate_prompt": settings["truncate_prompt"],
        **{name: settings[name] for name in OF_ROWS if settings[name] is not None},
        **{f"rollout.{name}": settings["rollout"][name] for name in ROLLOUT},
        "tools": [of_file(path) for path in files.values()],
        **depends_on(configured_code.of_file(*named_file) for named_file in files.items()),
    }


def _of_model(config: Config) -> str:
    if describe(config).remote:  # a server does not show more of it
        return f"{config.model_path} at {config.base_url}, tokenizer {config.tokenizer_path}"
    return of_model(model_folder(config))


def of_model(folder: Path) -> str:
    """Hash the names and the whole contents of a model's files: the same for a copy of them, on
    another machine too, and another one after any change in place."""
    names = (path for path in folder.iterdir() if not path.name.startswith("."))  # of caches
    files = sorted(path for path in names if path.is_file())
    with concurrent.futures.ThreadPoolExecutor(READERS) as readers:
        contents = list(readers.map(_remembered, files))
    digest = hashlib.sha256()
    for path, content in zip(files, contents, strict=True):
        digest.update(f"{path.name}\0{content}\0".encode())
    return digest.hexdigest()


def of_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _remembered(path: Path) -> str:
    """`of_file`, kept in the cache folder until the file's size, times or inode are others."""
    status = _status(path)
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, ConfigError):
        note = json.loads(_note(path).read_bytes())
        if note["status"] == status:
            return str(note["digest"])
    digest = of_file(path)
    with contextlib.suppress(OSError, ConfigError):  # a cache that cannot be written
        if status == _status(path):
            note = _note(path)
            note.parent.mkdir(exist_ok=True)
            new = note.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
            new.write_text(json.dumps({"status": status, "digest": digest}))
            new.replace(note)
    return digest


def _status(path: Path) -> list[int]:
    found = path.stat()  # the time of the last change of the inode cannot be set back
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev]


def _note(path: Path) -> Path:
    name = hashlib.blake2b(str(path.resolve()).encode(errors="surrogateescape"), digest_size=16)
    return cache_root() / "digests" / f"{name.hexdigest()}.json"
