"""What a run is known by, so that another one does not go on with its file: a reward function by
whatever it computes with and nothing else, the code that its files and keywords name, and the
model's files."""

from __future__ import annotations

import functools
import importlib
import os
import random
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from _inf.apps import configured_code
from _inf.apps.batch import fingerprint
from _inf.apps.batch.fingerprint import BLOCK, BLOCKS
from _inf.apps.code_version import CodeVersion, depends_on, version_of
from _inf.apps.eval.environments import environment_version, factory_of_file
from _inf.tools.definition import as_tools
from tests.support.scripts import environment


def made(text: str) -> Any:
    """`reward` of a notebook's cell, as text."""
    namespace = {"__name__": "__main__"}
    exec(textwrap.dedent(text), namespace)
    return namespace["reward"]


def same(first: CodeVersion, second: CodeVersion) -> bool:
    return second.scored(str(first))


# A program with a hole, and what stands in it before and after the change.
CHANGES = {
    "code": ("reward = lambda **rest: {}", "1", "2"),
    "global in an inner function": (
        "X = {}\ndef reward(**rest): return [x for x in (1, 2) if (lambda: x in X)()]",
        "{1}",
        "{2}",
    ),
    "function that it calls": (
        "def rule(s): return s == {}\ndef reward(s, **rest): return rule(s)",
        "'a'",
        "'b'",
    ),
    "constant of a set": ("reward = lambda s, **rest: s in {}", "{'a', 'b'}", "{'a', 'c'}"),
    "method": (
        "class Judge:\n    def __call__(self, **rest): return {}\nreward = Judge()",
        "1",
        "2",
    ),
    "attribute of an instance": (
        "class Judge:\n    def __init__(self): self.k = {}\nreward = Judge()",
        "1",
        "2",
    ),
    "pattern": (
        "import re\nX = re.compile({})\nreward = lambda s, **rest: X.match(s)",
        "'a'",
        "'b'",
    ),
    "function behind a decorator": (
        "import functools\n@functools.cache\ndef reward(s): return {}",
        "1",
        "2",
    ),
    "value of a closure": ("reward = (lambda x: lambda **rest: x)({})", "[1, 'a']", "[1, 'b']"),
}


def test_changed_function_is_another_and_an_equal_one_the_same():
    for what, (program, before, after) in CHANGES.items():
        first, second = (version_of(made(program.format(value))) for value in (before, after))
        assert not first.unknown and not same(first, second), what
        assert same(first, version_of(made(program.format(before)))), what


def test_comments_and_what_the_function_does_not_read_do_not_count():
    first = made("X = Y = 1\ndef reward(**rest): return X")
    second = made("X = 1; Y = 2\n\n# Another line.\ndef reward(**rest):\n    return X  # and this")
    assert same(version_of(first), version_of(second))


def test_every_process_describes_a_function_alike():
    program = (
        "import re, datetime\n"
        "from _inf.apps.code_version import version_of\n"
        "X = {'a', 'b', 'c', ('d', 4)}, re.compile('x'), datetime.date(2026, 1, 2)\n"
        "class Judge:\n    words = frozenset({'e', 'f'})\n"
        "def reward(s, **rest): return s in {'g', 'h', 'i'} or Judge() or X\n"
        "print(version_of(reward))\n"
    )
    found = {
        subprocess.check_output(
            [sys.executable, "-c", program], env=environment(PYTHONHASHSEED=seed), text=True
        )
        for seed in "12"
    }
    assert len(found) == 1


def test_value_that_cannot_be_read_is_named_and_never_counts_as_the_same():
    client = threading.Lock()

    def judge(**rest: Any) -> Any:
        return client

    version = version_of(judge)
    assert "lock" in version.unknown[0]
    assert not same(version, version_of(judge))
    [(name, entry)] = depends_on([version]).items()
    assert depends_on([version_of(judge)])[name] != entry  # each run is another one
    assert "of this run alone" in entry and "lock" in entry
    assert not same(version, version_of(functools.partial(judge, k=1)))


# ─── Files and modules ───


@pytest.fixture
def folder(tmp_path, monkeypatch):
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


def test_file_is_another_when_a_module_that_it_imports_has_changed_and_not_when_it_moved(folder):
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


def test_module_that_a_notebooks_function_uses_counts_with_its_files(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    importlib.import_module("reward_rules.strict")
    # A client that a module makes itself is known by the module's file.
    (folder / "reward_client.py").write_text(
        "import threading\nclient = threading.Lock()\ndef judge(**rest): return client\n"
    )
    judge = importlib.import_module("reward_client").judge
    assert same(version_of(judge), version_of(judge))
    inside = "def reward(**rest):\n    from reward_rules import words\n    return words.LIST"
    rewards = [made("from reward_rules import strict\nreward = lambda **rest: strict.rule(1)")]
    rewards.append(made(inside))
    versions = [version_of(reward) for reward in rewards]
    assert all(map(same, versions, map(version_of, rewards)))
    (folder / "reward_rules" / "words.py").write_text("LIST = ['b']\n")  # what a new process sees
    assert not any(map(same, versions, map(version_of, rewards)))


# ─── Code that files and keywords name ───

GAME = """
from rules_of_games import POINTS
class Game:
    def reset(self, **row): return None
    def get_reward(self): return POINTS * 1.0
kinds = {"easy": Game, "hard": lambda: Game()}
"""
TOOL = """
from rules_of_games import POINTS
def add(a: int) -> int:
    '''Add.

    Args:
        a: A number.
    '''
    return a + 1
class Tool:
    def execute(self): return 1
"""
FILES = {
    "game.py": GAME,
    "rules_of_games.py": "POINTS = 1\n",
    "classes_of_tools.py": TOOL,
    "server.py": "import rules_of_games\n",
    "tools.yaml": "tools:\n- {class_name: classes_of_tools.Tool, config: {type: native}}\n",
    "mcp.yaml": "- {type: mcp, command: python, args: [server.py]}\n",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)


def of_environment(named: str) -> Any:
    return environment_version({"environment_factory": factory_of_file(named)})


def of_file(name: str) -> Any:
    return configured_code.of_file("code", Path(name))


def of_function(name: str) -> Any:
    function = getattr(importlib.import_module("classes_of_tools"), name)
    return configured_code.of_tools(as_tools([function]))


@pytest.mark.parametrize(
    ("version", "argument", "edits"),
    [
        (of_environment, "game.py:Game", {"game.py": "1.0", "rules_of_games.py": "1"}),
        (of_environment, "game.py:kinds", {"game.py": "1.0"}),
        (of_file, "tools.yaml", {"classes_of_tools.py": "return 1", "rules_of_games.py": "1"}),
        (of_file, "mcp.yaml", {"rules_of_games.py": "1"}),
        (of_function, "add", {"classes_of_tools.py": "a + 1"}),
    ],
)
def test_edited_code_is_another_and_one_with_another_comment_is_not(
    version, argument, edits, tmp_path, monkeypatch
):
    if version is not of_file:  # whose folder is found without it
        monkeypatch.syspath_prepend(str(tmp_path))
    first = version(argument)
    for name, before in edits.items():
        text = Path(name).read_text()
        Path(name).write_text(text if name.endswith(".json") else f"{text}# a comment\n")
        assert version(argument) == first
        assert before in text
        Path(name).write_text(text.replace(before, "os" if "rules" in before else "22"))
        assert version(argument) != first
        Path(name).write_text(text)


def test_file_of_another_form_is_left_to_its_loading():
    for text in ("", "[", "tools: [{class_name: 3}]"):
        Path("tools.yaml").write_text(text)
        assert of_file("tools.yaml").digest


# ─── The model's files ───


def test_overwritten_model_is_another_and_a_copy_the_same_whatever_its_path_and_times(tmp_path):
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
    # A byte of a small file, a longer file, and other weights of the same size with the same times.
    (model / "config.json").write_text("[]")
    assert (second := fingerprint.of_model(model)) != first
    times, size = os.stat(weights), weights.stat().st_size
    for text in (bytes(size + 1), random.Random(1).randbytes(size)):
        weights.write_bytes(text)
        os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))  # as cp -p leaves it
        assert fingerprint.of_model(model) not in (first, second)
