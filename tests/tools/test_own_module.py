"""Modules in the folder of the file that names them: found last, never confused with others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from _inf.tools.loading import import_beside


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    assert sys.path == path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_module_and_package_beside_the_file_are_found_with_what_they_import(tmp_path: Path) -> None:
    written(tmp_path / "own_part.py", "X = 1")
    written(tmp_path / "own_module.py", "from own_part import X")
    written(tmp_path / "own_package" / "deep.py", "from .part import Y")
    written(tmp_path / "own_package" / "part.py", "Y = 2")
    assert import_beside(tmp_path / "tools.yaml", "own_module").X == 1
    assert import_beside(tmp_path / "tools.yaml", "own_package.deep").Y == 2


def test_file_is_found_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "a" / "own_relative.py", "X = 1")
    monkeypatch.chdir(tmp_path)
    assert import_beside("a/tools.yaml", "own_relative").X == 1


@pytest.mark.parametrize("part", ["own_name.py", "own_name/__init__.py", "own_name/deep.py"])
def test_module_that_another_one_hides_is_refused_and_the_other_is_not_imported(
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = written(tmp_path / "elsewhere" / part, "raise RuntimeError")
    beside = written(tmp_path / "beside" / part, "X = 'beside'")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    name = part.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    with pytest.raises(ImportError, match=f"{beside} is hidden by {first}"):
        import_beside(tmp_path / "beside" / "tools.yaml", name)


def test_module_beside_the_file_hides_none_that_it_does_not_name(tmp_path: Path) -> None:
    written(tmp_path / "json.py", "raise RuntimeError")
    written(tmp_path / "own_user.py", "from json import loads")
    assert import_beside(tmp_path / "tools.yaml", "own_user").loads("1") == 1


@pytest.mark.parametrize("name", ["own_twin", "own_twins.one"])
def test_another_folders_module_of_the_same_name_is_not_taken_for_it(
    tmp_path: Path, name: str
) -> None:
    part = name.replace(".", "/") + ".py"
    first = written(tmp_path / "a" / part, "X = 'a'")
    second = written(tmp_path / "b" / part, "X = 'b'")
    for _ in range(2):
        assert import_beside(tmp_path / "a" / "tools.yaml", name).X == "a"
    with pytest.raises(ImportError, match=f"{second} is hidden by {first}"):
        import_beside(tmp_path / "b" / "tools.yaml", name)


def test_what_a_module_raises_comes_out(tmp_path: Path) -> None:
    written(tmp_path / "own_broken.py", "1 / 0")
    with pytest.raises(ZeroDivisionError):
        import_beside(tmp_path / "tools.yaml", "own_broken")
    with pytest.raises(ModuleNotFoundError, match="own_nowhere"):
        import_beside(tmp_path / "tools.yaml", "own_nowhere")
