"""What a resumed run knows its model by: the whole contents of its files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from _inf.apps.batch import fingerprint

SIZE = 3 << 20


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(SIZE))
    return folder


def test_byte_in_the_middle_changed_in_place_makes_another_model(model: Path) -> None:
    weights = model / "model.safetensors"
    before, times = fingerprint.of_model(model), os.stat(weights)
    with open(weights, "r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"x")
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # as rsync -t and cp -p leave it
    assert fingerprint.of_model(model) != before


def test_copy_is_the_same_model_whatever_its_path_and_times(model: Path, tmp_path: Path) -> None:
    (model / ".inf-complete.json").write_text("of a cache")
    copy = tmp_path / "copy"
    shutil.copytree(model, copy, ignore=lambda *_: [".inf-complete.json"])
    for file in copy.iterdir():
        os.utime(file, (1, 1))
    assert fingerprint.of_model(copy) == fingerprint.of_model(model)
    (copy / "config.json").rename(copy / "other.json")
    assert fingerprint.of_model(copy) != fingerprint.of_model(model)


def test_files_are_read_once_for_all_runs_until_they_change(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    of_file = fingerprint.of_file
    monkeypatch.setattr(
        fingerprint, "of_file", lambda path: read.append(path.name) or of_file(path)
    )
    first = fingerprint.of_model(model)
    assert fingerprint.of_model(model) == first and len(read) == 2
    (model / "config.json").write_text("[]")
    changed = fingerprint.of_model(model)
    assert changed != first and read[2:] == ["config.json"]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))  # a cache that cannot be written
    assert fingerprint.of_model(model) == changed
