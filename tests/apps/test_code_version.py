"""What a reward function is known by: whatever it computes with, and nothing else."""

from __future__ import annotations

import functools
import importlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from _inf.apps.code_version import CodeVersion, version_of


def made(text: str) -> Any:
    """`reward` of a notebook's cell, as text."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(textwrap.dedent(text), namespace)
    return namespace["reward"]


def same(first: CodeVersion, second: CodeVersion) -> bool:
    return second.scored(str(first))


def closing_over(value: Any) -> Callable[..., Any]:
    return lambda **rest: value


# A program with a hole, and what stands in it before and after the change.
CHANGES = {
    "code": ("reward = lambda **rest: {}", "1", "2"),
    "default": ("def reward(k={}, **rest): return k", "1", "2"),
    "global in an inner function": (
        "X = {}\ndef reward(**rest): return [x for x in (1, 2) if (lambda: x in X)()]",
        *("{1}", "{2}"),
    ),
    "function that it calls": (
        "def rule(s): return s == {}\ndef reward(s, **rest): return rule(s)",
        *("'a'", "'b'"),
    ),
    "constant of a set": ("reward = lambda s, **rest: s in {}", "{'a', 'b'}", "{'a', 'c'}"),
    "method": (
        "class Judge:\n    def __call__(self, **rest): return {}\nreward = Judge()",
        *("1", "2"),
    ),
    "attribute of an instance": (
        "class Judge:\n    def __init__(self): self.k = {}\nreward = Judge()",
        *("1", "2"),
    ),
    "pattern": (
        "import re\nX = re.compile({})\nreward = lambda s, **rest: X.match(s)",
        *("'a'", "'b'"),
    ),
    "function behind a decorator": (
        "import functools\n@functools.cache\ndef reward(s): return {}",
        *("1", "2"),
    ),
    "bound argument": ("import functools\nreward = functools.partial(int, base={})", "2", "8"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_changed_function_is_another_and_an_equal_one_the_same(what: str) -> None:
    program, before, after = CHANGES[what]
    first, second = (version_of(made(program.format(value))) for value in (before, after))
    assert not first.unknown and not same(first, second)
    assert same(first, version_of(made(program.format(before))))


def test_values_of_a_closure_count() -> None:
    assert same(version_of(closing_over([1, "a"])), version_of(closing_over([1, "a"])))
    assert not same(version_of(closing_over([1, "a"])), version_of(closing_over([1, "b"])))


def test_comments_and_what_the_function_does_not_read_do_not_count() -> None:
    first = made("X = Y = 1\ndef reward(**rest): return X")
    second = made("X = 1; Y = 2\n\n# Another line.\ndef reward(**rest):\n    return X  # and this")
    assert same(version_of(first), version_of(second))


def test_every_process_describes_a_function_alike() -> None:
    program = (
        "import re, datetime\n"
        "from _inf.apps.code_version import version_of\n"
        "X = {'a', 'b', 'c', ('d', 4)}, re.compile('x'), datetime.date(2026, 1, 2)\n"
        "class Judge:\n    words = frozenset({'e', 'f'})\n"
        "def reward(s, **rest): return s in {'g', 'h', 'i'} or Judge() or X\n"
        "print(version_of(reward))\n"
    )
    path = os.pathsep.join(filter(None, sys.path))
    found = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in "1234"
    }
    assert len(found) == 1 and "?" not in found.pop()


class Client:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_value_that_cannot_be_read_is_named_and_never_counts_as_the_same() -> None:
    judge = closing_over(Client())
    version = version_of(judge)
    assert version.unknown == ("value (Client)",)
    assert not same(version, version_of(judge))
    assert not same(version, version_of(functools.partial(judge, k=1)))


# ─── Files and modules ───


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A reward file that imports modules, one of them in a function."""
    (tmp_path / "reward_rules").mkdir()
    for name, text in {
        "reward.py": "from reward_rules import strict\n"
        "def compute_score(**rest):\n    import reward_late\n    return strict.rule(1)\n",
        "reward_rules/__init__.py": "",
        "reward_rules/strict.py": "from . import words\nrule = lambda x: words.LIST\n",
        "reward_rules/words.py": "import json\nLIST = ['a']\n",
        "reward_late.py": "X = 1\n",
        "reward_unused.py": "X = 1\n",
    }.items():
        (tmp_path / name).write_text(text)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("reward_")]:
        del sys.modules[name]


def test_file_is_another_when_a_module_that_it_imports_has_changed_and_not_when_it_moved(
    folder: Path,
) -> None:
    first = version_of(f"{folder / 'reward.py'}:compute_score")
    assert not same(first, version_of(f"{folder / 'reward.py'}:other"))
    (folder / "reward_unused.py").write_text("X = 2\n")
    folder = folder.rename(folder.with_name("moved"))
    reward = f"{folder / 'reward.py'}:compute_score"
    for name in ("reward.py", "reward_rules/strict.py", "reward_rules/words.py", "reward_late.py"):
        text = (folder / name).read_text()
        (folder / name).write_text(f"{text}# nothing\n")
        assert same(first, version_of(reward))
        (folder / name).write_text(f"{text}Y = 2\n")
        assert not same(first, version_of(reward))
        (folder / name).write_text(text)


def test_module_that_a_notebooks_function_uses_counts_with_its_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(folder))
    importlib.import_module("reward_rules.strict")
    # A client that a module makes itself is known by the module's file.
    (folder / "reward_client.py").write_text(
        "import threading\nclient = threading.Lock()\ndef judge(**rest): return client\n"
    )
    judge = importlib.import_module("reward_client").judge
    assert same(version_of(judge), version_of(judge))
    reward = made("from reward_rules import strict\nreward = lambda **rest: strict.rule(1)")
    first = version_of(reward)
    assert same(first, version_of(reward))
    (folder / "reward_rules" / "words.py").write_text("LIST = ['b']\n")  # what a new process sees
    assert not same(first, version_of(reward))


def test_class_of_a_folder_is_known_by_its_module_and_those_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "classes_of_a_folder.py").write_text("class Game: pass\n")
    (tmp_path / "named_by_an_entry.py").write_text("X = 1\n")
    with monkeypatch.context() as path:
        path.syspath_prepend(str(tmp_path))
        game = importlib.import_module("classes_of_a_folder").Game

    def digest(*imports: str) -> str:
        return version_of(game, folder=tmp_path, imports=imports).digest

    first, named = digest(), digest("named_by_an_entry")
    assert first != named
    (tmp_path / "named_by_an_entry.py").write_text("X = 2\n")
    assert digest() == first and digest("named_by_an_entry") != named
    (tmp_path / "classes_of_a_folder.py").write_text("class Game: pass  # a comment\n")
    assert digest() == first
    (tmp_path / "classes_of_a_folder.py").write_text("class Game: x = 1\n")
    assert digest() != first
