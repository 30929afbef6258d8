"""Code that a run's files and keywords name: its version in fresh processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GAME = """
from rules import POINTS
class Game:
    def reset(self, **row): return None
    def get_reward(self): return POINTS * 1.0
def make(): return Game()
kinds = {"easy": Game, "hard": make}
"""
TOOL = """
from rules import POINTS
class Tool:
    def execute(self): return 1
"""
ENVIRONMENT = """
from _inf.apps.eval.environments import environment_version, factory_of_file
print(environment_version({"environment_factory": factory_of_file(sys.argv[1])}))
"""
FILE = """
from pathlib import Path
from _inf.apps import configured_code
print(configured_code.of_file("code", Path(sys.argv[1])))
"""
FUNCTION = """
sys.path.append(".")
from functions import add
from _inf.apps import configured_code
from _inf.tools.definition import as_tools
print(configured_code.of_tools(as_tools([add])))
"""
ADD = """
def add(a: int) -> int:
    '''Add.

    Args:
        a: A number.
    '''
    return a + 1
"""


def in_a_fresh_process(program: str, argument: str, folder: Path) -> str:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), *sys.path]))
    return subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}", argument],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    servers = {"mcpServers": {"local": {"command": "python", "args": ["server.py"]}}}
    for name, text in {
        "game.py": GAME,
        "other.py": GAME.replace("* 1.0", "* 0.0"),
        "rules.py": "POINTS = 1\n",
        "classes.py": TOOL,
        "server.py": "import rules\n",
        "functions.py": ADD,
        "servers.json": json.dumps(servers),
        "tools.yaml": "tools:\n- {class_name: classes.Tool, config: {type: native}}\n",
        "interactions.yaml": "interaction:\n- {name: a, class_name: classes.Tool, config: {}}\n",
        "verl_mcp.yaml": "tools:\n- class_name: verl.tools.mcp_base_tool.MCPBaseTool\n"
        "  config: {type: mcp}\n  mcp: {mcp_servers_config_path: servers.json}\n",
        "mcp.yaml": "- {type: mcp, command: python, args: [server.py]}\n",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def changes(program: str, argument: str, edited: Path, before: str, after: str) -> None:
    """A comment in the file leaves the version alone, in fresh processes, and an edit does not."""
    folder, text = edited.parent, edited.read_text()
    first = in_a_fresh_process(program, argument, folder)
    comment = "" if edited.suffix == ".json" else "# a comment\n"
    edited.write_text(text + comment)
    assert in_a_fresh_process(program, argument, folder) == first
    assert before in text
    edited.write_text(text.replace(before, after))
    assert in_a_fresh_process(program, argument, folder) != first


@pytest.mark.parametrize("name", ["Game", "make", "kinds"])
def test_edited_environment_of_a_file_is_another_in_a_fresh_process(
    name: str, folder: Path
) -> None:
    changes(ENVIRONMENT, f"game.py:{name}", folder / "game.py", "* 1.0", "* 0.0")


def test_environment_depends_on_the_modules_of_its_file_and_on_which_file_it_is(
    folder: Path,
) -> None:
    first, other = (
        in_a_fresh_process(ENVIRONMENT, f"{file}.py:Game", folder) for file in ("game", "other")
    )
    assert first != other
    changes(ENVIRONMENT, "game.py:Game", folder / "rules.py", "1", "2")


@pytest.mark.parametrize(
    ("file", "edited", "before"),
    [
        ("tools.yaml", "classes.py", "return 1"),
        ("tools.yaml", "rules.py", "= 1"),
        ("interactions.yaml", "classes.py", "return 1"),
        ("verl_mcp.yaml", "servers.json", "local"),
        ("verl_mcp.yaml", "server.py", "import rules"),
        ("mcp.yaml", "rules.py", "= 1"),
    ],
)
def test_edited_code_that_a_file_of_tools_or_interactions_names_is_another(
    file: str, edited: str, before: str, folder: Path
) -> None:
    after = {"local": "remote", "import rules": "import os"}.get(before, before.replace("1", "2"))
    changes(FILE, file, folder / edited, before, after)


def test_edited_function_of_a_calls_tools_is_another(folder: Path) -> None:
    changes(FUNCTION, "", folder / "functions.py", "a + 1", "a + 2")


@pytest.mark.parametrize("text", ["", "[", "3", "tools: [{class_name: 3}]", "- {x: '${oc.env:N}'}"])
def test_file_of_another_form_is_left_to_its_loading(text: str, tmp_path: Path) -> None:
    from _inf.apps import configured_code

    (tmp_path / "tools.yaml").write_text(text)
    assert configured_code.of_file("code", tmp_path / "tools.yaml").digest
