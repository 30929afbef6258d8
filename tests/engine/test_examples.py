"""What stands in `examples/` runs: the scripts on the session's engine, the notebook on its own."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from scripts import START_SECONDS, environment

import inf
from inf import InferenceEngine

EXAMPLES = Path(inf.__file__).parent / "examples"


@pytest.fixture
def on_engine(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        inf, "InferenceEngine", lambda *args, **kwargs: contextlib.nullcontext(engine)
    )


@pytest.mark.usefixtures("on_engine")
def test_chat_remembers_the_turns_before_and_ends_with_an_empty_line(
    engine: InferenceEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("My name is Ada.\nWhat is my name?\n\nnever\n"))
    before = engine.stats()["requests"]
    program = runpy.run_path(str(EXAMPLES / "chat.py"))
    assert engine.stats()["requests"] == before + 2
    assert [turn["role"] for turn in program["history"]] == ["user", "assistant"] * 2
    said = capsys.readouterr().out
    for turn in program["history"][1::2]:
        assert f"AI: {turn['content']}\n" in said


@pytest.mark.usefixtures("on_engine")
def test_evaluation_scores_each_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = str(EXAMPLES / "problems.jsonl")
    monkeypatch.setattr(sys, "argv", ["eval_gsm8k.py", problems, "2"])
    program = runpy.run_path(str(EXAMPLES / "eval_gsm8k.py"))
    said = capsys.readouterr().out
    assert len(program["output"]) == 2
    assert re.search(r"^strict: \d of 2 right$", said, re.M)
    assert re.search(r"^cut by length: \d; \d+ tok/s$", said, re.M)
    assert said.startswith("A kiosk sells 18 newspapers")


def test_notebook_runs_and_its_outputs_are_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(EXAMPLES / "gsm8k_eval.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert not [out for cell in code for out in cell.outputs if out.output_type == "error"]
    assert any("image/png" in out.get("data", {}) for cell in code for out in cell.outputs)

    committed = "".join(out.text for cell in code for out in cell.outputs if "text" in out)
    assert re.search(r"^strict: [1-9]\d* of 10$", committed, re.M)  # some of them succeed

    shutil.copy(EXAMPLES / "problems.jsonl", tmp_path)
    private = {name: str(tmp_path) for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    for name, value in environment(LIMIT="2", **private).items():
        monkeypatch.setenv(name, value)
    manager = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])
    )
    NotebookClient(notebook, km=manager, timeout=START_SECONDS).execute(cwd=str(tmp_path))
    streams = [out for cell in code for out in cell.outputs if out.output_type == "stream"]
    said = "".join(out.text for out in streams if out.name == "stdout")  # no progress bars
    assert re.search(r"^strict: \d of 2$", said, re.M)
    assert re.search(r"^groups with both: \d$", said, re.M)
