"""The agent loops of a real verl 0.9.1, in an environment of its own, against `engine.serve()`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.engines import engine_fixture
from tests.support.installed import installed, ran
from tests.support.pages import ROOT, blocks
from tests.support.tool_calling import (
    TOOL_MODEL,
)

pytestmark = [pytest.mark.soak, pytest.mark.verl]

EXAMPLE = ROOT / "examples" / "verl_client.py"
VERL09 = ROOT / "tests" / "verl09"
WITHIN = 1e-5  # of a log prob


engine_with_tools = engine_fixture(TOOL_MODEL, prompt_length=1024, response_length=256)


@pytest.fixture(scope="module")
def server(engine_with_tools):
    with engine_with_tools.serve() as server:
        yield server


def run(*arguments: str, folder: Path = ROOT) -> str:
    """What a program says that runs in `folder`, in that environment; it can import the example."""
    python, variables = installed("verl09") / "bin" / "python", {"HF_HUB_OFFLINE": "1"}
    return ran(python, *arguments, folder=folder, PYTHONPATH=str(EXAMPLE.parent), **variables)


@pytest.fixture(scope="module")
def rows(server, tmp_path_factory):
    """The rows that the loops of verl 0.9.1 gave, as `tests/verl09/run_loops.py` writes them."""
    out = tmp_path_factory.mktemp("verl09") / "rows.json"
    run(str(VERL09 / "run_loops.py"), server.base_url, str(TOOL_MODEL), str(out))
    found = json.loads(out.read_text())
    return found


def test_rows_of_verls_loops_are_the_traces_of_their_request_ids(rows, server):
    assert len({row["request_id"] for row in rows}) == len(rows)
    cut = 0
    for row in rows:
        [trace] = server.traces(row["request_id"])
        length = len(row["response_ids"])
        cut += length < len(trace.token_ids)
        assert row["prompt_ids"] == trace.prompt_token_ids, row
        assert row["response_ids"] == trace.token_ids[:length], row
        assert row["response_mask"] == trace.response_mask[:length], row
        assert row["logprobs"] == pytest.approx(trace.logprobs[:length], rel=0, abs=WITHIN), row
    assert cut >= 1  # verl cut a row at response_length, and only verl
    turns = {row["loop"] for row in rows if 0 in row["response_mask"]}
    assert turns == {"tool_agent", "guessing_agent"}


def test_greedy_rows_are_those_on_record(rows):
    """The record is for tests that have no verl 0.9.1."""
    record = json.loads((VERL09 / "greedy_rows.json").read_text())
    kept = [{name: row[name] for name in record[0]} for row in rows if row["greedy"]]
    assert kept == record


def test_programs_of_the_page_run(server, tmp_path):
    for block in blocks("docs/agent_loops_verl09.md", "python"):
        here = block.replace("http://127.0.0.1:8000", server.base_url)
        here = here.replace("tests/tool_model", str(TOOL_MODEL))
        (tmp_path / block.split()[1]).write_text(here)
    said = run("run.py", folder=tmp_path)
    assert "torch.Size([2, 512]) [4 2]\n" in said
    assert said.count("[1, 1, 1") == 2
