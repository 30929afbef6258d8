"""A server for the tests of the backend `openai`, and the C functions for those of `sglang`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_server import ScriptedServer, echo, scripted


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted(echo) as server:
        yield server


@pytest.fixture(scope="session")
def compiled_kernels() -> Any:
    """`Kernels`, of the library that gcc makes here."""
    from _inf.backends.verl import compiled_libraries, environment

    environment.prepare("auto")
    from _inf.backends.verl.child.kernels import Kernels

    library = compiled_libraries.kernel_library()
    assert library is not None, "there must be a gcc"
    return Kernels(library)


@pytest.fixture
def miscompiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, str], Path]:
    """Makes the library after one replacement, of a text that is in one source once."""
    from _inf.backends.verl import compiled_libraries

    def make(right: str, wrong: str) -> Path:
        texts = {source: source.read_text() for source in compiled_libraries.SOURCES}
        assert sum(text.count(right) for text in texts.values()) == 1
        changed = [tmp_path / source.name for source in texts]
        for source, text in zip(changed, texts.values(), strict=True):
            source.write_text(text.replace(right, wrong))
        monkeypatch.setattr(compiled_libraries, "SOURCES", changed)
        quickly = ("-O0", *compiled_libraries._OPTIONS[1:])
        monkeypatch.setattr(compiled_libraries, "_OPTIONS", quickly)
        compiler = compiled_libraries._gcc()
        assert compiler is not None
        compiled_libraries._compile_kernels(compiler, tmp_path)
        return tmp_path / compiled_libraries.KERNELS

    return make
