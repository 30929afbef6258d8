"""What stands in `examples/` runs: the scripts on the session's engine, the notebook on its own."""

from __future__ import annotations

import builtins
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
from tests.support.scripts import (
    START_SECONDS,
    environment,
)

EXAMPLES = Path(inf.__file__).parent / "examples"


@pytest.fixture
def short(tiny, monkeypatch):
    """A script's engine is the session's, and its answers are short."""
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(tiny))
    for name in ("generate", "stream"):
        method = functools.partial(short_answers, getattr(tiny, name))
        monkeypatch.setattr(tiny, name, method)


def short_answers(method: Callable[..., Any], *args: Any, **params: Any) -> Any:
    return method(*args, **params | {"max_tokens": 24})


@pytest.mark.usefixtures("short")
def test_chat_remembers_the_turns_before_and_ends_with_an_empty_line(tiny, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("My name is Ada.\nWhat is my name?\n\nnever\n"))
    before = tiny.stats()["requests"]
    program = runpy.run_path(str(EXAMPLES / "chat.py"))
    assert tiny.stats()["requests"] == before + 2
    assert [turn["role"] for turn in program["history"]] == ["user", "assistant"] * 2
    said = capsys.readouterr().out
    for turn in program["history"][1::2]:
        assert f"AI: {turn['content']}\n" in said


QUIET = ("chat", "chat_with_tools", "eval_gsm8k", "quickstart")
TRAINING = ("environment", "grpo", "grpo_async", "tool_calling", "train_agent")


@pytest.mark.parametrize("name", [*QUIET, *TRAINING])
@pytest.mark.parametrize("started", [False, True])
def test_example_stops_at_ctrl_c_without_a_traceback(name, started, monkeypatch):
    """While its engine starts, and at whatever it does with it first."""
    engine = contextlib.nullcontext(Interrupted())
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: engine if started else interrupt())
    monkeypatch.setattr(builtins, "input", interrupt)
    monkeypatch.setattr(sys, "stdin", map(interrupt, "a"))
    monkeypatch.setattr(sys, "argv", [name])
    ends = contextlib.nullcontext() if name in QUIET else pytest.raises(SystemExit, match="130")
    with ends:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def interrupt(*_: Any, **__: Any) -> NoReturn:
    raise KeyboardInterrupt


class Interrupted:
    __getattr__ = interrupt


@pytest.mark.verl
@pytest.mark.usefixtures("short")
def test_evaluation_scores_each_problem(monkeypatch, capsys):
    problems = str(EXAMPLES / "problems.jsonl")
    monkeypatch.setattr(sys, "argv", ["eval_gsm8k.py", problems, "2"])
    program = runpy.run_path(str(EXAMPLES / "eval_gsm8k.py"))
    said = capsys.readouterr().out
    assert len(program["output"]) == 2
    assert re.search(r"^strict: \d of 2 right$", said, re.M)
    assert re.search(r"^cut by length: \d; \d+ tok/s$", said, re.M)
    assert said.startswith("A kiosk sells 18 newspapers")


# Cells before the notebook's last one. One awaits. In the other, which does not, Jupyter's stop
# button sends SIGINT to the kernel's process group, and the first one's output is shown as a table.
AWAITED = """
question = dict(prompts=["Is 1 < 2?", "Two"], temperature=0, max_tokens=8)
awaited = await engine.agenerate(**question)
"""
STOPPED = """
import os, signal, threading
threading.Timer(1, os.killpg, (os.getpgrp(), signal.SIGINT)).start()
try:
    engine.generate("One", max_tokens=2000, ignore_eos=True)
except KeyboardInterrupt:
    assert engine.generate(**question).token_ids == awaited.token_ids
    print("stopped")
awaited
"""


@pytest.mark.verl
@pytest.mark.slow
def test_notebook_of_the_evaluation_runs_stops_and_shows_its_answers_alone(tmp_path, monkeypatch):
    notebook = nbformat.read(EXAMPLES / "gsm8k_eval.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("max_tokens=128", "max_tokens=24")
    notebook.cells[-1:-1] = map(nbformat.v4.new_code_cell, (AWAITED, STOPPED))
    shutil.copy(EXAMPLES / "problems.jsonl", tmp_path)
    # Without folders of kernels there is one: the interpreter that runs this.
    kernels = KernelSpecManager(kernel_dirs=[])
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=kernels)
    private = {name: str(tmp_path) for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    for name, value in environment(LIMIT="2", **private).items():
        monkeypatch.setenv(name, value)
    NotebookClient(notebook, km=manager, timeout=START_SECONDS).execute(cwd=str(tmp_path))
    cells = {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    streams = [out for outs in cells.values() for out in outs if out.output_type == "stream"]
    said = "".join(out.text for out in streams if out.name == "stdout")  # no progress bars
    assert re.search(r"^strict: \d of 2$", said, re.M) and "stopped" in said
    [start] = [source for source in cells if "engine = InferenceEngine()" in source]
    assert cells[start] == [] == cells["engine.shutdown()"]
    [shown] = [out.data for out in cells[STOPPED] if out.output_type == "execute_result"]
    assert shown["text/html"].count("<tr>") == 3  # a head and two rows
