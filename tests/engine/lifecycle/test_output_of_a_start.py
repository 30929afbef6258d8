"""What a newcomer sees beside the answer: a line while the engine starts, and nothing of others."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading

import pytest
import yaml

from _inf.apps.cli import main
from _inf.runtime.extras import has_verl
from tests.support.scripts import INF, START_SECONDS, environment
from tests.support.tiny import tiny_model

QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def newcomer():
    """The README's command with its stderr on a terminal: exit code, stdout, stderr's bytes."""
    terminal, stderr = os.openpty()
    seen: list[bytes] = []

    def watch() -> None:
        while True:
            try:
                seen.append(os.read(terminal, 65536))
            except OSError:  # how a terminal says that its last user has gone
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        done = subprocess.run(
            [sys.executable, "-c", INF, QUESTION],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment(TERM="xterm-256color"),
            timeout=START_SECONDS,
        )
    finally:
        os.close(stderr)
        watcher.join(10)
        os.close(terminal)
    return {"code": done.returncode, "out": done.stdout.decode(), "err": b"".join(seen).decode()}


def test_newcomers_command_prints_the_answer_after_a_line_that_is_erased(newcomer):
    assert newcomer["code"] == 0
    assert re.fullmatch(r"[^\n]*Paris[^\n]*\n", newcomer["out"])
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", newcomer["err"])  # colours, cursor, erasing
    lines = {line[1:].strip() for line in re.split(r"[\r\n]+", plain) if line.strip()}
    seconds = 15 if has_verl() else 5
    assert lines == {f"Starting SmolLM2-135M-Instruct (about {seconds} seconds) ..."}
    assert newcomer["err"].rstrip().endswith("\x1b[2K")  # erase in line


@pytest.mark.slow
def test_inf_log_debug_shows_what_others_say_and_leaves_stdout_to_the_rows(tmp_path):
    config = {"model_path": str(tiny_model()), "rollout": {"response_length": 16}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(config))
    arguments = ["-c", "tiny.yaml", "--set", "rollout.response_length=7", "--json", "Hello"]
    done = subprocess.run(
        [sys.executable, "-c", INF, *arguments],
        cwd=tmp_path,
        env=environment(INF_LOG="debug"),
        capture_output=True,
        text=True,
        timeout=START_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") > 20
    assert all(word in done.stderr for word in ("DEBUG", "sglang", "UserWarning"))
    [row] = map(json.loads, done.stdout.splitlines())
    assert len(row["token_ids"]) <= 7  # ours, not the file's 16


@pytest.mark.parametrize(
    ("level", "says"),
    [
        ("", "inf: model_path: .*"),
        ("Warning", "inf: model_path: .*"),
        ("info", "inf: Starting /no/such/model .*\ninf: model_path: .*"),
        ("nonsense", r"inf: INF_LOG: 'nonsense' .*debug, info, warning.*\."),
    ],
)
def test_level_says_what_is_told_where_there_is_no_terminal(level, says, monkeypatch, capfd):
    monkeypatch.setenv("INF_LOG", level)
    assert main(["--set", "model_path=/no/such/model", "Hello"]) == 2  # needs no engine
    out, err = capfd.readouterr()
    assert out == "" and re.fullmatch(says + "\n", err)
