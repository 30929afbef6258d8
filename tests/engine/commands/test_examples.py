"""What stands in `examples/` runs: the scripts on the session's engine, the notebook on its own."""

from __future__ import annotations

import contextlib
import functools
import io
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

import inf
from inf import InferenceEngine
from tests.support.scripts import START_SECONDS, environment

EXAMPLES = Path(inf.__file__).parent / "examples"


@pytest.fixture
def on_engine(engine: InferenceEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script's engine is the session's, and its answers are short."""
    monkeypatch.setattr(
        inf, "InferenceEngine", lambda *args, **kwargs: contextlib.nullcontext(engine)
    )
    for name in ("generate", "stream"):
        short = functools.partial(short_answers, getattr(engine, name))
        monkeypatch.setattr(engine, name, short)


def short_answers(method: Callable[..., Any], *args: Any, **params: Any) -> Any:
    return method(*args, **params | {"max_tokens": 24})


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


CHATS = ("chat", "chat_with_tools")


@pytest.mark.parametrize("name", [*CHATS, "environment", "grpo", "grpo_async", "train_agent"])
def test_example_stops_at_ctrl_c_without_a_traceback(name: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(inf, "InferenceEngine", interrupt)
    monkeypatch.setattr(sys, "argv", [name])
    ends = contextlib.nullcontext() if name in CHATS else pytest.raises(SystemExit, match="stopped")
    with ends:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def interrupt(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.verl
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


# Cells that follow the notebook's own, but for its last one.
CELLS = [
    "question = dict(prompts='What is the capital of France?', temperature=0, max_tokens=8)\n"
    "engine.generate(**question).token_ids == (await engine.agenerate(**question)).token_ids",
    # What Jupyter's stop button does: SIGINT to the kernel's process group.
    "import os, signal, threading\n"
    "assert os.getpgrp() == os.getpid()\n"
    "threading.Timer(1, os.killpg, (os.getpgrp(), signal.SIGINT)).start()\n"
    "try:\n"
    "    engine.generate('One', max_tokens=2000, ignore_eos=True)\n"
    "except KeyboardInterrupt:\n"
    "    interrupted = True\n"
    "interrupted",
    "await engine.agenerate(['Is 1 < 2?', 'Two'], temperature=0, max_tokens=8, ignore_eos=True)",
]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """The outputs of the notebook's cells and of `CELLS`, by source, run by this interpreter.

    Its answers are short here.
    """
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.read(EXAMPLES / "gsm8k_eval.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("max_tokens=128", "max_tokens=24")
    notebook.cells[-1:-1] = [nbformat.v4.new_code_cell(source) for source in CELLS]
    shutil.copy(EXAMPLES / "problems.jsonl", folder)
    # Without folders of kernels there is one: the interpreter that runs this.
    manager = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])
    )
    client = NotebookClient(notebook, km=manager, timeout=START_SECONDS)
    private = {name: str(folder) for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(LIMIT="2", **private).items():
            patch.setenv(name, value)
        client.execute(cwd=str(folder))
    return {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def shown(outputs: list[Any]) -> dict[str, str]:
    """The one value of a cell; an erased bar may stand beside it where it took long."""
    (output,) = [output for output in outputs if output["output_type"] == "execute_result"]
    return dict(output["data"])


@pytest.mark.slow
def test_notebook_of_the_evaluation_runs_and_its_engine_shows_nothing(
    cells: dict[str, list[Any]],
) -> None:
    streams = [out for outs in cells.values() for out in outs if out.output_type == "stream"]
    said = "".join(out.text for out in streams if out.name == "stdout")  # no progress bars
    assert re.search(r"^strict: \d of 2$", said, re.M)
    assert re.search(r"^groups with both: \d$", said, re.M)
    [start] = [source for source in cells if "engine = InferenceEngine()" in source]
    assert cells[start] == [] == cells["engine.shutdown()"]


@pytest.mark.slow
def test_notebook_awaits_agenerate_stops_generate_and_shows_an_output_as_a_table(
    cells: dict[str, list[Any]],
) -> None:
    assert [shown(cells[cell])["text/plain"] for cell in CELLS[:2]] == ["True", "True"]
    table = shown(cells[CELLS[2]])["text/html"]
    assert table.startswith("<table>") and "<th>completion</th>" in table
    assert table.count("<tr>") == 3  # a head and two rows
