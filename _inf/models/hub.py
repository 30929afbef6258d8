"""Downloads what a model needs from the Hugging Face Hub, and explains failures."""

from __future__ import annotations

import fnmatch
import os
import re
from pathlib import Path
from typing import Any

from _inf.errors import ConfigError, did_you_mean
from _inf.models.complete import lacking

HUB = "the Hugging Face Hub"
HUB_TIMEOUT = 5.0  # seconds to reach the Hub at all
HUB_ID = re.compile(r"[A-Za-z0-9][\w.\-]*(/[A-Za-z0-9][\w.\-]*)?")


def from_hub(repo: str, path: Path, trust_remote_code: bool, revision: str | None) -> Path:
    """Return the folder of a repository's files that Transformers reads: from the local cache if it
    is complete there, else from the network. path: where a folder was looked for, for messages."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    looked = f"model_path: there is no folder at {path}"
    if path.parent.is_dir() and (near := did_you_mean(path.name, os.listdir(path.parent))):
        looked += f" ({near.removeprefix('; ')})"
    try:
        try:
            # The patterns ask for no file: version 2 would raise for each that is not there.
            asked: Any = {"local_files_only": True, "ignore_patterns": "*"}
            cached = Path(snapshot_download(repo, revision=revision, **asked))
            if not (lacks := lacking(cached, trust_remote_code)):
                return cached
            looked += f" (the Hub's local copy {cached} lacks {', '.join(lacks)})"
        except LocalEntryNotFoundError:
            pass
        files = HfApi().model_info(repo, revision=revision, timeout=HUB_TIMEOUT).siblings or []
        names = sorted(file.rfilename for file in files)
        if "config.json" not in names:
            ggufs = [name for name in names if name.endswith(".gguf")]
            hint = f"; download {ggufs[0]} from it and name that file" if ggufs else ""
            raise ConfigError(f"{looked}, and {_lacking(repo, 'config.json')}{hint}")
        # Mistral's repositories hold their weights a second time as consolidated*.safetensors.
        surplus = ["*/*", "consolidated*", "adapter_model.*", "optimizer.*", "training_args.*"]
        kept = [n for n in names if not any(fnmatch.fnmatch(n, each) for each in surplus)]
        safe = any(name.endswith(".safetensors") for name in kept)
        wanted = _small_files(trust_remote_code)
        wanted += ["*.safetensors"] if safe else ["*.bin", "*.pt"]
        chosen: Any = {"allow_patterns": wanted, "ignore_patterns": surplus}
        chosen |= {"revision": revision, "etag_timeout": HUB_TIMEOUT}
        folder = Path(snapshot_download(repo, **chosen))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"{looked}, and {hub_reason(error, repo)}") from None
    if lacks := lacking(folder):
        raise ConfigError(f"{looked}, and {_lacking(repo, ', '.join(lacks))}")
    return folder


def _lacking(repo: str, what: str) -> str:
    return f"{repo!r} on {HUB} lacks {what}"


def _small_files(trust_remote_code: bool) -> list[str]:
    """Patterns of a repository's files but its weights."""
    code = ["*.py"] if trust_remote_code else []
    return ["*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", *code]


def hub_tokenizer(key: str, path: str, trust_remote_code: bool, revision: str | None = None) -> str:
    """Return the folder with a Hub repository's small files, without its weights; any other path
    as it is. Transformers itself would ask a Hub that cannot be reached for minutes. Raises
    `ConfigError` about `key`."""
    if os.path.exists(path) or not HUB_ID.fullmatch(path):
        return path
    from huggingface_hub import snapshot_download

    wanted = _small_files(trust_remote_code)
    asked: Any = {"allow_patterns": wanted, "ignore_patterns": ["*/*"], "revision": revision}
    try:
        return snapshot_download(path, etag_timeout=HUB_TIMEOUT, **asked)
    except Exception as error:
        looked = f"there is no folder at {os.path.abspath(path)}"
        raise ConfigError.of(key, f"{looked}, and {hub_reason(error, path)}") from None


def hub_reason(error: Exception, repo: str) -> str:
    """Say why a repository could not be read, as the end of a sentence."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    log_in = "log in (`hf auth login`, HF_TOKEN)"
    if isinstance(error, errors.GatedRepoError):
        return f"{repo!r} is gated on {HUB}: accept its terms on its page there, then {log_in}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{repo!r} was not found on {HUB}; if it is private, {log_in}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{repo!r} has no such revision on {HUB}; correct the key revision"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{HUB} could not be reached: HF_HUB_OFFLINE is set"
    response = getattr(error, "response", None)
    if response is not None:
        return f"{HUB} answered {response.status_code}"
    # huggingface_hub 0 asks through requests, 1 and 2 through httpx and httpx2.
    packages = {each.__module__.partition(".")[0] for each in type(error).__mro__}
    of_http = packages & {"requests", "httpx", "httpx2"}
    if of_http or isinstance(error, ConnectionError | TimeoutError):
        return f"{HUB} could not be reached at {constants.ENDPOINT}"
    said = str(error).strip().split("\n")[0] or type(error).__name__
    return f"{repo!r} could not be read from {HUB}: {said}"
