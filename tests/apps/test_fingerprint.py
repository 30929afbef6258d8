"""What a resumed run knows its model by: names, sizes and parts of the contents of its files."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

from _inf.apps.batch import fingerprint
from _inf.apps.batch.fingerprint import BLOCK, BLOCKS


def test_overwritten_model_is_another_and_a_copy_the_same_whatever_its_path_and_times(
    tmp_path: Path,
) -> None:
    model, copy = tmp_path / "model", tmp_path / "copy"
    model.mkdir()
    (model / "config.json").write_text("{}")
    weights = model / "model.safetensors"
    weights.write_bytes(random.Random(0).randbytes(2 * BLOCKS * BLOCK))
    (model / ".inf-complete.json").write_text("of a cache")
    first = fingerprint.of_model(model)
    shutil.copytree(model, copy, ignore=lambda *_: [".inf-complete.json"])
    for file in copy.iterdir():
        os.utime(file, (1, 1))
    assert fingerprint.of_model(copy) == first
    (copy / "config.json").rename(copy / "other.json")
    assert fingerprint.of_model(copy) != first
    # A byte of a small file, a longer file, and other weights of the same size with the same times.
    (model / "config.json").write_text("[]")
    assert (second := fingerprint.of_model(model)) != first
    times, size = os.stat(weights), weights.stat().st_size
    for text in (bytes(size + 1), random.Random(1).randbytes(size)):
        weights.write_bytes(text)
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # as cp -p leaves it
        assert fingerprint.of_model(model) not in (first, second)
