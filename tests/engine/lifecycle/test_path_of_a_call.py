"""What a newcomer must know before they can change the main job stays small.

A plain `generate` imports nothing of a feature that it does not use, and the number of modules that
it imports, of files that it enters and of lines that it runs does not grow unseen: who raises a
bound here says in the change why it is worth it.
"""

import json
import re
import sys
from pathlib import Path

import pytest

from _inf.parts.found import PARTS
from tests.support.installed import ran

pytestmark = [pytest.mark.verl, pytest.mark.slow]
# Without those of parts, each of which adds one: all are asked for their keywords.
MODULES, FILES, LINES = 85, 59, 1600  # some files and lines depend on timing
CALL_FILES, CALL_LINES = 26, 540  # of an answer alone
UNUSED = (
    *("_inf.apps", "_inf.conversation.agent_loops", "_inf.conversation.environments"),
    *("_inf.conversation.interactions", "_inf.conversation.tool_loop", "_inf.conversation.hooks"),
    *("_inf.tools.execution", "_inf.tools.loading", "_inf.tools.mcp", "_inf.tools.calculator"),
    *("_inf.tools.readers", "_inf.models.merging", "_inf.models.dequantize"),
    *("_inf.backends.hf.", "_inf.backends.openai.", "_inf.backends.new_adapters"),
)


@pytest.fixture(scope="module")
def path():
    said = ran(sys.executable, "benchmarks/path_of_a_call.py", "--json")
    counted = json.loads(said.splitlines()[-1])
    return counted


def test_plain_call_imports_no_feature_that_it_does_not_use(path):
    assert [name for name in path["modules"] if name.startswith(UNUSED)] == []


def test_path_of_a_plain_call_does_not_grow_unseen(path):
    modules = [name for name in path["modules"] if not name.startswith("_inf.parts.")]
    assert len(modules) <= MODULES, modules
    assert len(path["files"]) <= FILES, path["files"]
    assert path["lines"] <= LINES, path["files"]
    assert len(path["call"]) <= CALL_FILES, path["call"]
    assert sum(path["call"].values()) <= CALL_LINES, path["call"]


def test_files_of_a_plain_call_name_no_keyword_of_a_part(path):
    words = {name for part in PARTS for name in part.keywords} - {"on_error", "logprobs"}
    words |= {part.__name__ for part in PARTS}
    named = {
        (file, word)
        for file in path["call"]
        if file != "inf.py"
        for word in re.findall(r"\w+", Path(file).read_text())
        if word in words
    }
    assert named == set()
