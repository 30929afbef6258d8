"""The progress bar beside other lines, on a terminal and in a notebook. No engine starts."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient

from _inf.runtime import progress as progress_module
from _inf.runtime.progress import progress, say


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """Return the visible lines: a carriage return overwrites the line."""
        return [line.rstrip("\r").split("\r")[-1].strip() for line in self.getvalue().split("\n")]


def test_line_printed_beside_a_bar_is_alone_above_it():
    with contextlib.redirect_stderr(Terminal()) as terminal, progress(3, True) as report:
        assert report is not None
        report(1, 10)
        say("inf: in.jsonl, line 2: not JSON")
        said, bar = terminal.lines()
        assert said == "inf: in.jsonl, line 2: not JSON"
        assert "1/3" in bar
        report(3, 30)
    assert terminal.lines()[0] == said and "30 tokens" in terminal.getvalue()


def test_default_bar_is_shown_after_two_seconds_and_erased(monkeypatch):
    with contextlib.redirect_stderr(Terminal()) as terminal, progress(3, None) as report:
        assert report is not None
        report(1, 10)
        say("a warning")  # shows no bar before its time
        report(3, 30)
    assert terminal.lines() == ["a warning", ""]
    monkeypatch.setattr(progress_module, "DELAY_SECONDS", 0.0)
    with contextlib.redirect_stderr(terminal), progress(3, None, before=1) as report:
        assert report is not None
        report(2, 10)
        assert "1/3" in terminal.lines()[-1]  # an earlier run's row counts
    assert terminal.lines() == ["a warning", ""]


def test_nothing_is_reported_without_a_terminal_or_notebook():
    with progress(3, None) as report:
        assert report is None


CELL = """
from _inf.runtime.progress import progress
with progress(300, True) as report:
    for done in range(301):
        report(done, 2 * done)
done
"""


def test_bar_of_a_saved_notebook_is_one_output_that_ends_empty(tmp_path, monkeypatch):
    for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(progress_module.__file__).parents[2]))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    kernels = KernelSpecManager(kernel_dirs=[])
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=kernels)
    NotebookClient(notebook, km=manager, timeout=60).execute(cwd=str(tmp_path))
    bar, result = notebook.cells[0].outputs
    assert (bar.output_type, bar.data) == ("display_data", {"text/plain": ""})
    assert result.data == {"text/plain": "300"}
