"""Builds cache folders once, under a hidden name and with a lock that ends with its process: a
killed build leaves nothing under the final name, and a second process waits for the first.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

from _inf.errors import ConfigError

_LONGEST_BUILD = 600.0  # seconds that a second process waits for the first


def cache_root() -> Path:
    """Return `$XDG_CACHE_HOME/inf` or `~/.cache/inf`, created if needed, private to the user."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # unset, or relative: the XDG specification says to ignore it
        base = os.path.expanduser("~/.cache")
    root = Path(base) / "inf"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if root.stat().st_uid != os.getuid():
            raise PermissionError(1, "it belongs to another user")
        if root.stat().st_mode & 0o077:
            root.chmod(0o700)
    except OSError as error:
        raise _unwritable(root, error) from None
    return root


def by_transformers() -> str:
    """Return a part of the key of what Transformers writes: 4 cannot read all that 5 writes."""
    return "transformers" + importlib.metadata.version("transformers").partition(".")[0]


def build_once(key: str, build: Callable[[Path], None]) -> Path:
    """Return the folder `key` of the cache, which must always mean the same content; if it is
    missing, `build` fills an empty one, of which nothing is kept if it raises."""
    root = cache_root()
    final = root / key
    if final.is_dir():
        return final
    try:
        with FileLock(root / f".{key}.lock", timeout=_LONGEST_BUILD):
            if not final.is_dir():  # else another process built it while we waited
                _build(final, build)
    except Timeout:
        raise ConfigError.of(
            "model_path",
            f"another process has been building {final} for over "
            f"{_LONGEST_BUILD:.0f} s; end it and try again",
        ) from None
    except OSError as error:
        raise _unwritable(root, error) from None
    return final


def _build(final: Path, build: Callable[[Path], None]) -> None:
    draft = final.parent / f".{final.name}.draft"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        build(draft)
        draft.rename(final)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _unwritable(root: Path, error: OSError) -> ConfigError:
    return ConfigError.of(
        "model_path",
        f"cannot use the cache folder {root}: {error.strerror or error}; "
        "set XDG_CACHE_HOME to a folder of yours",
    )
