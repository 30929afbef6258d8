"""Modules in the folder of the file that names them: found last, never confused with others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from _inf.tools.loading import import_beside


@pytest.fixture(autouse=True)
def as_before():
    path, modules = list(sys.path), set(sys.modules)
    yield
    assert sys.path == path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_module_and_package_beside_the_file_are_found_with_what_they_import(tmp_path):
    written(tmp_path / "own_part.py", "X = 1")
    written(tmp_path / "own_module.py", "from own_part import X")
    written(tmp_path / "own_package" / "deep.py", "from .part import Y")
    written(tmp_path / "own_package" / "part.py", "Y = 2")
    assert import_beside(tmp_path / "tools.yaml", "own_module").X == 1
    assert import_beside(tmp_path / "tools.yaml", "own_package.deep").Y == 2


@pytest.mark.parametrize("part", ["own_name.py", "own_name/__init__.py", "own_name/deep.py"])
def test_module_that_another_one_hides_is_refused_and_the_other_is_not_imported(
    tmp_path, part, monkeypatch
):
    first = written(tmp_path / "elsewhere" / part, "raise RuntimeError")
    beside = written(tmp_path / "beside" / part, "X = 'beside'")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    name = part.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    with pytest.raises(
        ImportError, match=f"{beside} is hidden by {first}, .*; rename one of them$"
    ):
        import_beside(tmp_path / "beside" / "tools.yaml", name)
