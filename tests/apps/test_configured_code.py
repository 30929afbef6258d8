"""Code that a run's files and keywords name: its version, before and after an edit."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from _inf.apps import configured_code
from _inf.apps.eval.environments import environment_version, factory_of_file
from _inf.tools.definition import as_tools

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
    "servers.json": json.dumps({"mcpServers": {"local": {"args": ["server.py"]}}}),
    "tools.yaml": "tools:\n- {class_name: classes_of_tools.Tool, config: {type: native}}\n",
    "verl_mcp.yaml": "tools:\n- class_name: verl.tools.mcp_base_tool.MCPBaseTool\n"
    "  config: {type: mcp}\n  mcp: {mcp_servers_config_path: servers.json}\n",
    "mcp.yaml": "- {type: mcp, command: python, args: [server.py]}\n",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text)


def environment(named: str) -> Any:
    return environment_version({"environment_factory": factory_of_file(named)})


def of_file(name: str) -> Any:
    return configured_code.of_file("code", Path(name))


def of_function(name: str) -> Any:
    function = getattr(importlib.import_module("classes_of_tools"), name)
    return configured_code.of_tools(as_tools([function]))


@pytest.mark.parametrize(
    ("version", "argument", "edits"),
    [
        (environment, "game.py:Game", {"game.py": "1.0", "rules_of_games.py": "1"}),
        (environment, "game.py:kinds", {"game.py": "1.0"}),
        (of_file, "tools.yaml", {"classes_of_tools.py": "return 1", "rules_of_games.py": "1"}),
        (of_file, "verl_mcp.yaml", {"servers.json": "local", "server.py": "rules_of_games"}),
        (of_file, "mcp.yaml", {"rules_of_games.py": "1"}),
        (of_function, "add", {"classes_of_tools.py": "a + 1"}),
    ],
)
def test_edited_code_is_another_and_one_with_another_comment_is_not(
    version: Callable[[str], Any],
    argument: str,
    edits: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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


@pytest.mark.parametrize("text", ["", "[", "3", "tools: [{class_name: 3}]", "- {x: '${oc.env:N}'}"])
def test_file_of_another_form_is_left_to_its_loading(text: str) -> None:
    Path("tools.yaml").write_text(text)
    assert of_file("tools.yaml").digest
