"""Every file that a user names as an output: how it is opened, refused and replaced."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import inf
from _inf.apps.batch.output_file import OutputFile
from _inf.apps.cli import main
from _inf.apps.cli.chat import Chat
from _inf.apps.rollouts.traces import Trace, TraceFile
from _inf.runtime.files import check_output
from inf import GenerationOutput, GenerationRow, InferenceError
from tests.support.json_lines import read
from tests.support.stub_engine import StubEngine

DATA = {"prompt": "1 + 1?", "data_source": "sums"}


class Stub(StubEngine):
    async def answer(self, prompt: Any, number: int) -> str:
        return "2"


@pytest.fixture(autouse=True)
def _inputs(tmp_path, monkeypatch):
    """The stub is every command's engine; the inputs and the outputs have a folder each."""
    monkeypatch.setattr(inf, "InferenceEngine", Stub)
    monkeypatch.setattr(Stub, "starts", 0)
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    rows = [json.dumps({**DATA, "number": i, "reward": i % 2, "completion": "2"}) for i in (0, 1)]
    Path("rows.jsonl").write_text("\n".join(rows) + "\n")
    Path("reward.py").write_text("def compute_score(**rest):\n    return 1.0\n")


def command(*words: object) -> None:
    """Run a command, which may print more than the limit of files in these tests."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main([str(word) for word in words])
    if code:
        raise InferenceError(f"exit code {code}: {said.getvalue()}")


def evaluated(*options: object) -> None:
    command("eval", "rows.jsonl", "--reward", "reward.py", *options)


def rows_of_a_batch(path: Path) -> None:
    with OutputFile(path) as file:
        file.begin({}, restart=False)
        for line in (2, 1):  # so that they are sorted at the end
            file.append(line, {"completion": f"{path.stat().st_size} bytes before"})


def traces(path: Path) -> None:
    file = TraceFile(path)
    file.write(None, Trace(str(path.stat().st_size), [1], [2], [1], [-0.5]))
    file.close()


def answers() -> GenerationOutput:
    return GenerationOutput([GenerationRow("2", [1], [2], finish_reason="stop")])


def saved_chat(path: Path) -> None:
    Chat(SimpleNamespace(config=Stub.config), {}, "a pirate", True)._save(str(path))


# What writes a file, and the name that it needs.
WRITERS = {
    "GenerationOutput.save .jsonl": ("a.jsonl", lambda path: answers().save(path)),
    "GenerationOutput.save .parquet": ("a.parquet", lambda path: answers().save(path)),
    "save_rollouts": ("a.jsonl", lambda path: inf.save_rollouts(answers(), path)),
    "inf show": ("page.html", lambda path: command("show", "rows.jsonl", "--out", path)),
    "inf eval compare": (
        "found.json",
        lambda path: command("eval", "compare", "rows.jsonl", "rows.jsonl", "--out", path),
    ),
    "summary of inf eval": (
        "run.summary.json",
        lambda path: evaluated("--out", str(path).removesuffix(".summary.json")),
    ),
    "rows of inf eval": ("run.jsonl", lambda path: evaluated("--out", path)),
    "rows of inf batch": ("answers.jsonl", rows_of_a_batch),
    "settings of inf batch": (
        "answers.meta.json",
        lambda path: rows_of_a_batch(Path(str(path).replace(".meta.json", ".jsonl"))),
    ),
    "inf serve --traces": ("traces.jsonl", traces),
    "/save": ("chat.jsonl", saved_chat),
}
each_writer = pytest.mark.parametrize("writer", WRITERS)


@each_writer
def test_file_keeps_its_mode_and_a_link_its_target(writer):
    name, write = WRITERS[writer]
    (link := Path("out") / name).symlink_to("../kept")  # a target that is not there yet
    write(link)
    assert Path("kept").stat().st_size and link.is_symlink()
    if writer == "/save":  # replaces nothing
        return
    Path("kept").chmod(0o600)
    write(link)
    assert link.is_symlink() and stat.S_IMODE(Path("kept").stat().st_mode) == 0o600
    assert not list(Path().rglob(".inf-*"))


@each_writer
def test_full_disk_leaves_the_earlier_file(writer):
    name, write = WRITERS[writer]
    path = Path("out") / name
    if writer != "/save":
        write(path)
    before = path.read_bytes() if path.exists() else None
    if writer != "rows of inf eval":  # which are all there
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))  # bytes of any file
        try:
            with pytest.raises(InferenceError, match="File too large"):
                write(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (path.read_bytes() if path.exists() else None) == before
    assert not list(Path().rglob(".inf-*"))


@each_writer
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("none/file")])
def test_what_is_no_regular_file_is_refused_before_any_work(writer, make):
    name, write = WRITERS[writer]
    path = Path("out") / name
    make(path)
    before = path.lstat()
    with pytest.raises(InferenceError, match=f"{path}: .*; name a file that can be written"):
        write(path)
    after = path.lstat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert Stub.starts == 0 and os.listdir("out") == [name]


def test_command_refuses_a_wrong_output_before_it_starts():
    Path("x.meta.json").write_text('{"prompt": "Hi"}\n')
    Path("link.jsonl").symlink_to("rows.jsonl")
    Path("same.json").write_bytes(Path("rows.jsonl").read_bytes())
    before = {path: path.read_bytes() for path in Path().glob("*.json*")}
    for words in (
        "batch rows.jsonl rows.jsonl",
        "batch x.meta.json x.jsonl",  # whose settings would be written into the input
        "eval rows.jsonl --reward reward.py --out rows",
        "serve --traces rows.jsonl",
        "show rows.jsonl --out link.jsonl",
        "eval compare same.json rows.jsonl --out same",
    ):
        with pytest.raises(InferenceError, match="exit code 2"):
            command(*words.split())
        assert Stub.starts == 0
        assert {path: path.read_bytes() for path in Path().glob("*.json*")} == before


ONE_TRACE = '{"id": "a", "prompt_token_ids": [1], "token_ids": [2], "response_mask": [1]}'


def test_file_that_holds_no_traces_is_refused_and_unchanged():
    for text in ('{"prompt": "Hi"}\n{"prompt": "Ho"}', "\n", "\0" * 9, ONE_TRACE):
        Path("mine").write_text(text)
        with pytest.raises(InferenceError, match="traces: mine: its first line is not a trace"):
            TraceFile("mine")
        assert Path("mine").read_text() == text


def test_data_that_is_no_file_is_no_output():
    Path("rows.jsonl").touch()
    names = ["rg:" + ",".join(["chain_sum"] * 40), "rows.jsonl/x", "none.jsonl"]
    assert check_output("rows.jsonl", "out", names) == Path("rows.jsonl").resolve()


@contextlib.contextmanager
def piped(text: bytes) -> Iterator[str]:
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    yield f"/dev/fd/{reader}"
    os.close(reader)


def test_input_may_be_a_pipe():
    for _ in range(2):  # the second run resumes
        with piped(b'{"prompt": "1?"}\n' * 3) as name:
            command("batch", name, "answers.jsonl")
        assert [row["completion"] for row in read(Path("answers.jsonl"))] == ["2"] * 3
        assert Stub.starts == 1
    with piped(Path("rows.jsonl").read_bytes()) as name:
        assert len(inf.load_rollouts(name)) == 2
