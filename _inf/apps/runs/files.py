"""Finds the files of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from _inf.apps.rollouts.trainers import READERS
from _inf.errors import ConfigError

PATTERNS = tuple(dict.fromkeys(each for reader in READERS for each in reader.folders))
APART = tuple(pattern for reader in READERS for pattern in reader.apart)


def files_of_run(paths: Sequence[Path], notes: list[str]) -> list[Path]:
    """Return the named files, or one folder's files of one kind, in the order of the numbers in
    their names; other files that could be read are noted."""
    if len(paths) > 1 and (folders := [each for each in paths if each.is_dir()]):
        raise ConfigError.of(
            "path", f"{folders[0]} is a folder: one folder is a run, or files are."
        )
    files = [file for each in paths for file in _files(each, notes)]
    if not files:
        raise ConfigError.of("path", "no files; name a run's folder, or its files.")
    return files


def _files(path: Path, notes: list[str]) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"{path}: no such file or folder.")
    found = {pattern: files for pattern in PATTERNS if (files := [*path.glob(pattern)])}
    if not found:
        raise ConfigError(_nothing(path))
    pattern, files = next(iter(found.items()))
    if others := [file for file in files if not file.is_file()]:
        raise ConfigError(f"{others[0]}: it is no file; remove it, or name the files of the run.")
    left = {other: len(more) for other, more in found.items() if other != pattern}
    for each in APART:
        apart = [file for file in files if fnmatch(file.name, each)]
        if apart and len(apart) < len(files):
            left[each] = len(apart)
            files = [file for file in files if file not in apart]
    if left:
        names = ", ".join(f"{name} ({count})" for name, count in left.items())
        notes.append(
            f"{path}: read were its {len(files)} files {pattern}, and not {names}; to see those, "
            "name the files."
        )
    return sorted(files, key=lambda file: numbered(file.relative_to(path)))


def _nothing(path: Path) -> str:
    if packed := [*path.glob("*.jsonl.gz")]:
        return f"{path}: {packed[0].name} is not read as it is; unpack it first, with gunzip."
    return (
        f"{path}: it has no files of samples (.jsonl, .parquet, .pt), nor folders with them as "
        "trainers make them (docs/your_run.md)."
    )


def numbered(path: Path) -> tuple[list[int], str]:
    """By what files of a folder are sorted: the numbers in their names, then the names."""
    name = str(path.with_suffix(""))
    return [int(digits) for digits in re.findall(r"\d+", name)], name
