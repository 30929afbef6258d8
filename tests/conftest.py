"""What the tests share: one engine on the embedded model, one on a tiny one, for the whole session.

A test that breaks an engine takes `mortal`, or starts its own on a tiny model.
"""

from __future__ import annotations

import functools
import gc
import os
import re
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest

# A variable that forbids it would have each of many processes compile all that it imports.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False
if "PYTEST_XDIST_WORKER" in os.environ:  # another worker beside it: one thread for each engine
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from _inf.backends.openai.http import httpx
from _inf.config.tool_formats import ALIASES, SGLANG
from _inf.runtime.extras import has_verl
from _inf.runtime.interpreter import quick_imports
from inf import InferenceEngine
from tests.support.engines import LONGER, engine_fixture
from tests.support.scripts import HANG_SECONDS, SETTINGS, TINY
from tests.support.tiny import tiny_model
from tests.support.tool_calling import TOOL_MODEL

WITH_ENGINES = {"engine", "soak"}  # folders here
HEAVY = {"caller", "engine", "tiny", "mortal"}  # fixtures
ALONE = {"soak", "architectures"}  # one file, or figures of a machine that does nothing else
SELDOM = {*ALONE, "slow"}
OF_SGLANG = {"sglang", *SGLANG, *(alias for alias, name in ALIASES.items() if name in SGLANG)}
NEEDS_VERL = "needs verl's stack, which is not installed here: bash install.sh"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--overlap",
        action="store_true",
        help="engines on SGLang overlap their steps, as on a GPU, unless a test says otherwise",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Reading the certificates takes 34 ms for each of a thousand clients, which all ask loopback.
    transports = httpx._transports.default
    transports.create_ssl_context = functools.cache(httpx.create_ssl_context)
    if config.getoption("--overlap"):
        from _inf.backends.verl import server_arguments

        server_arguments.SERIAL_DEVICES.clear()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two, each with engines of its own; none where files are named, or a suite of its own is."""
    named = config.args_source is pytest.Config.ArgsSource.ARGS
    shown = config.option.capture == "no"  # workers cannot print
    return 0 if named or shown or config.option.markexpr in ALONE else 2


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Lets no garbage collection look through the imported modules, of which none is garbage."""
    with quick_imports():
        collected = yield
    gc.freeze()
    return collected


def pytest_unconfigure() -> None:
    """Lets the last garbage collection find what imports left: the Triton of torch 2.15 would print
    a list of it at the end of the process."""
    if not has_verl():
        gc.unfreeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that have no test of a run are not even imported: folders of engines or of soak tests,
    and, where a seldom mark is asked for, files that do not name it."""
    asked, name = config.option.markexpr, collection_path.name
    folders = WITH_ENGINES if asked == "not engine" else {"soak"} if "not soak" in asked else ()
    if name in folders:
        return True if collection_path.parent == Path(__file__).parent else None
    if asked in SELDOM and name.startswith("test_"):
        return True if f"mark.{asked}" not in collection_path.read_text() else None
    return None


class SkippedModule(pytest.Module):
    """One whose tests all need verl, and whose imports may."""

    def collect(self) -> NoReturn:
        pytest.skip(NEEDS_VERL, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> object:
    """Where verl is not installed, a module whose `pytestmark` has `verl` is not even imported."""
    marked = re.search(r"^pytestmark = .*pytest\.mark\.verl\b", module_path.read_text(), re.M)
    if has_verl() or not marked:
        return None
    return SkippedModule.from_parent(parent, path=module_path)


def _needs_verl(item: pytest.Item) -> bool:
    """Whether it has the marker, or a parameter that is the backend `sglang`, or a format of tool
    calls of SGLang's."""
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    read = any(isinstance(value, str) and value in OF_SGLANG for value in parameters)
    return read or item.get_closest_marker("verl") is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips what needs verl where it is not installed. Marks with `engine` what is slow, in a
    folder of engines or takes a heavy fixture, and puts it behind the rest."""
    here = Path(__file__).parent
    for item in items:
        heavy = HEAVY & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("slow")
        if heavy or item.path.relative_to(here).parts[0] in WITH_ENGINES:
            item.add_marker(pytest.mark.engine)
        if _needs_verl(item) and not has_verl():
            item.add_marker(pytest.mark.skip(NEEDS_VERL))

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        """What takes longest comes first: at the end, the other worker would wait for it. The slow
        file that does is in this folder."""
        folder = item.path.relative_to(here).parts[0]
        engine = item.get_closest_marker("engine") is not None
        return engine, item.path.parent != here, engine and folder not in WITH_ENGINES

    items.sort(key=place)


@pytest.fixture(scope="module", autouse=True)
def _first_engine(request):
    """Starts `tiny` before the engines of a file if a later test takes it: while one runs, another
    one of the process starts in a tenth of the time."""
    items = request.session.items
    starts = any(item.get_closest_marker("engine") for item in items if item.path == request.path)
    if starts and any("tiny" in getattr(item, "fixturenames", ()) for item in items):
        request.getfixturevalue("tiny")


@pytest.fixture
def command(capfd):
    """`command(*arguments)` runs `inf` in this process: exit code, stdout, stderr."""
    from _inf.apps.cli import main

    def run(*arguments: Any) -> tuple[int, str, str]:
        capfd.readouterr()
        return (main([*map(str, arguments)]), *capfd.readouterr())

    return run


# One whose model writes tool calls, greedy.
caller = engine_fixture(TOOL_MODEL, scope="session", name="hf", do_sample=False, **LONGER)


@pytest.fixture(scope="session")
def engine():
    """The embedded default."""
    with InferenceEngine() as engine:
        yield engine


@pytest.fixture(scope="session")
def tiny():
    """A random tiny Qwen3: fast, and its greedy answers wander."""
    with InferenceEngine(model_path=str(tiny_model()), rollout=TINY) as engine:
        gc.collect()
        gc.freeze()  # its imports: a collection of all would stop this process for a second
        yield engine


@pytest.fixture(scope="session")
def tokenizer():
    """That of the tiny model, without an engine; a test that changes it changes a copy."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model())


@pytest.fixture(scope="session")
def _mortal(tmp_path_factory):
    engines: list[InferenceEngine] = []
    yield engines
    for engine in engines:
        engine.shutdown()


@pytest.fixture
def mortal(_mortal, tmp_path_factory, monkeypatch):
    """One of 4,096 tokens that tests kill, put to sleep or give other weights.

    Alive and with its folder's weights for each test: a test that changes this costs a start.
    """
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("mortal")))
    if not _mortal:
        asked = {"model_path": str(tiny_model()), "rollout": SETTINGS}
        if has_verl():
            asked["hang_timeout"] = HANG_SECONDS
            asked["rollout"] = SETTINGS | {"free_cache_engine": True}
        _mortal.append(InferenceEngine(**asked))
    [engine] = _mortal
    if engine.dead:
        engine.restart()
    return engine
