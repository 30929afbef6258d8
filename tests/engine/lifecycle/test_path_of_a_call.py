"""What a newcomer must know before they can change the main job stays small.

A plain `generate` imports nothing of a feature that it does not use, and the number of modules that
it imports, of files that it enters and of lines that it runs does not grow unseen: who raises a
bound here says in the change why it is worth it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
# A module for each part, which has the rows of its keywords, is among them.
MODULES, FILES, LINES = 93, 55, 1660
UNUSED = (
    *("_inf.apps", "_inf.conversation.agent_loops", "_inf.conversation.environments"),
    *("_inf.conversation.interactions", "_inf.conversation.tool_loop", "_inf.conversation.hooks"),
    *("_inf.tools.execution", "_inf.tools.loading", "_inf.tools.mcp", "_inf.tools.calculator"),
    *("_inf.tools.readers", "_inf.models.merging", "_inf.models.dequantize"),
    *("_inf.backends.hf.", "_inf.backends.openai.", "_inf.backends.new_adapters"),
)


@pytest.fixture(scope="module")
def path() -> dict[str, Any]:
    program = [sys.executable, "benchmarks/path_of_a_call.py", "--json"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    counted: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return counted


def test_plain_call_imports_no_feature_that_it_does_not_use(path: dict[str, Any]) -> None:
    assert [name for name in path["modules"] if name.startswith(UNUSED)] == []


def test_path_of_a_plain_call_does_not_grow_unseen(path: dict[str, Any]) -> None:
    assert len(path["modules"]) <= MODULES, path["modules"]
    assert len(path["files"]) <= FILES, path["files"]
    assert path["lines"] <= LINES, path["files"]
