"""The Python of pages of docs/, run as it stands; that of the README is in `test_backends.py`."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pandas
import psutil
import pytest

import inf
from _inf.runtime.extras import has_verl
from inf import InferenceEngine
from tests.support.pages import ROOT, blocks
from tests.support.scripts import (
    GONE_SECONDS,
    INF,
    START_SECONDS,
    alive,
    command_line,
    script,
    until,
)


def runs_here(block: str) -> bool:
    """Whether a program needs no verl, and nothing else that is not installed, where verl is not:
    with it all programs run."""
    modules = []
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.append(node.module)
        elif isinstance(node, ast.Import):
            modules += [each.name for each in node.names]
    needs_verl = re.search(r"_batch\(|_config_path|verl", block) is not None
    return has_verl() or (not needs_verl and all(map(importlib.util.find_spec, modules)))


def test_python_of_the_page_on_serving_runs(
    tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inf, "InferenceEngine", lambda: contextlib.nullcontext(tiny))
    names: dict[str, Any] = {}
    for block in blocks("docs/serving.md", "python"):
        if not has_verl():
            block = block.partition("    batch = engine.trainer_batch(")[0]
        if runs_here(block):
            exec(compile(block, "docs/serving.md", "exec"), names)
    assert len(names["trace"].finish_reasons) == 2
    if has_verl():
        assert len(names["batch"]) == 4
        of_rows = names["of_rows"][:, 0].tolist()
        assert of_rows == pytest.approx([2**-0.5] * 2 + [-(2**-0.5)] * 2, abs=1e-4)
    assert capsys.readouterr().out


@pytest.mark.verl
def test_program_of_the_page_on_agents_makes_a_batch(
    tiny: InferenceEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rollout has the two answers of a process of its own. One agent asks nothing at first,
    and one does not end."""
    program, agent = blocks("docs/train_any_agent.md", "python")
    first = "import os, pathlib, sys, time\nurl = os.environ['OPENAI_BASE_URL']\n"
    first += "if 'france-0-0' in url: sys.exit()\n"
    last = "\nif 'sky-1-' in url: time.sleep(600)\n"
    (tmp_path / "agent.py").write_text(first + agent + last)
    program = program.replace("SECONDS = 600", "SECONDS = 20")
    monkeypatch.setattr(inf, "InferenceEngine", lambda: contextlib.nullcontext(tiny))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(program, "docs/train_any_agent.md", "exec"), names)
    columns = names["batch"].non_tensor_batch
    assert [*columns["uid"]] == ["france", "france", "sky", "sky"]
    assert len({*columns["rollout"]}) == 4 and [*columns["__num_turns__"]] == [2] * 4
    assert len(inf.load_traces("traces.jsonl")) == 4


@pytest.mark.verl
def test_python_of_the_page_on_rollouts_runs_and_its_batch_comes_back(
    tiny: InferenceEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inf, "InferenceEngine", lambda: contextlib.nullcontext(tiny))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    [block] = blocks("docs/rollouts.md", "python")
    exec(compile(block, "docs/rollouts.md", "exec"), names)
    before, after = names["batch"].batch, names["again"].batch
    assert all(before[name].equal(after[name]) for name in before.keys())
    assert len(names["one"]) == 1 and len(names["rollouts"]) == 4


def test_python_of_the_page_on_evaluation_runs(
    tiny: InferenceEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own_reward, program, *_ = blocks("docs/evaluation.md", "python")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(own_reward, "docs/evaluation.md", "exec"), names)
    row = {"prompt": "Hello", "data_source": "own", "reward_model": {"ground_truth": "e"}}
    pandas.DataFrame([row]).to_parquet(tmp_path / "test.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(inf, "InferenceEngine", lambda: contextlib.nullcontext(tiny))
    evaluate = functools.partial(inf.evaluate, reward=names["compute_score"])
    monkeypatch.setattr(inf, "evaluate", evaluate, raising=False)
    exec(compile(program, "docs/evaluation.md", "exec"), names)
    assert "val-aux/own/length/mean@4" in names["report"].metrics
    assert capsys.readouterr().out.startswith("{")


def engine_of(block: str) -> dict[str, Any]:
    """The keywords with which a block makes its engine."""
    (call,) = [
        node
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "InferenceEngine"
    ]
    return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}


def run_page(
    page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[list[str], list[str]]:
    """Run a page's Python; return what it printed, and what its comments say that it prints.

    Blocks that begin with a file's name are that file; one engine, the last, runs the others.
    """
    python = blocks(page, "python")
    for block in blocks(page, "(?:python|yaml)"):
        if file := re.match(r"# ([a-z_]+\.(py|yaml))\n", block):
            (folder / file[1]).write_text(block)
    (folder / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(folder)
    programs = [
        block for block in python if not re.match(r"# [a-z_]+\.py\n", block) and runs_here(block)
    ]
    path = list(sys.path)
    *_, last = (block for block in programs if "InferenceEngine(" in block)
    with InferenceEngine(**engine_of(last)) as engine:
        assert sys.path == path
        monkeypatch.setattr(inf, "InferenceEngine", lambda **keywords: engine)
        names: dict[str, Any] = {}
        for block in programs:
            exec(compile(block, page, "exec"), names)
    said = capsys.readouterr().out.splitlines()
    expected = re.findall(r"^print\(.*\)  # (.*)$", "".join(programs), re.M)
    return said, expected


def test_page_of_tools_prints_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said, expected = run_page("docs/tools.md", tmp_path, monkeypatch, capsys)
    assert len(expected) == (5 if has_verl() else 2)
    assert said[: len(expected)] == expected
    turns = ["user", "assistant"] * 2 if has_verl() else []
    assert [line.split(" | ")[0] for line in said[len(expected) :]] == turns


@pytest.mark.slow
def test_file_of_an_mcp_server_on_the_page_of_tools_runs_and_nothing_but_the_answer_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of Transformers starts, answers and ends without a word: Transformers 5 has progress
    bars of weights, Triton 3.9 a report at an unusual exit. So does the server."""
    pytest.importorskip("mcp_types", reason="version 2 of the package mcp is not installed")
    for block in [*blocks("docs/tools.md", "python"), *blocks("docs/tools.md", "yaml")]:
        if file := re.match(r"# (mcp_[a-z]+\.(py|yaml))\n", block):
            (tmp_path / file[1]).write_text(block)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    monkeypatch.chdir(tmp_path)
    [command] = blocks("docs/tools.md", "bash")
    words = ["--set", "rollout.name=hf", *shlex.split(command.replace("\\\n", ""))[1:]]
    with script(INF, tmp_path, arguments=words) as run:
        assert until(lambda: any(map(is_server, run.meet())), START_SECONDS), run.err
        assert run.exit_code(START_SECONDS) == 0
        assert (run.out, run.err) == ("The answer is 84.\n", "")
        assert until(lambda: not alive(run.family), GONE_SECONDS)


def is_server(process: psutil.Process) -> bool:
    return "mcp_program.py" in command_line(process)


@pytest.mark.verl
def test_page_of_agent_loops_prints_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said, expected = run_page("docs/agent_loops.md", tmp_path, monkeypatch, capsys)
    assert len(expected) == 3 and said == expected


def test_page_of_environments_prints_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    said, expected = run_page("docs/environments.md", tmp_path, monkeypatch, capsys)
    del sys.modules["homework"]
    assert len(expected) == (7 if has_verl() else 6) and said == expected
