"""`inf batch` with a stub as the engine: checks before an engine starts, and the final report."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import inf
from tests.support.json_lines import read, write
from tests.support.stub_engine import StubEngine

Ran = tuple[int, str]
PROMPTS = [{"prompt": f"p{i}"} for i in range(4)]


class Stub(StubEngine):
    """Answers everything with "yes"; at the prompt `stops_at` Ctrl-C is pressed."""

    stops_at = ""

    async def answer(self, prompt: str, number: int) -> str:
        if prompt == self.stops_at:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(5)
        return "yes"


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch, command: Any) -> Callable[..., Ran]:
    """`batch(lines, *options)` answers in.jsonl into out.jsonl; returns exit code and stderr."""
    monkeypatch.setattr(Stub, "starts", 0)
    monkeypatch.setattr(inf, "InferenceEngine", Stub)

    def run(lines: list[Any], *options: str) -> Ran:
        code, _, err = command("batch", write(Path("in.jsonl"), lines), "out.jsonl", *options)
        return code, err

    return run


def test_custom_id_of_two_lines_is_refused_with_both_numbers(batch: Callable[..., Ran]) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    lines = [{"custom_id": name, "body": body} for name in ("a", "b", "a")]
    code, err = batch([lines[0], "", *lines[1:]])
    assert (code, Stub.starts) == (2, 0)
    assert "in.jsonl, line 4: line 1 has the custom_id 'a' too" in err
    assert not Path("out.jsonl").exists()


def test_changed_options_or_rules_are_refused_and_finished_files_start_no_engine(
    batch: Callable[..., Ran],
) -> None:
    lines = [*PROMPTS, "{"]
    assert batch(lines)[0] == 1
    out, meta = Path("out.jsonl"), Path("out.meta.json")
    before, about = out.read_bytes(), meta.read_text()
    code, err = batch(lines, "--max-tokens", "5")
    assert code == 2 and "out.jsonl was begun with parameters=" in err
    meta.write_text(json.dumps(json.loads(about) | {"format": 1}))  # other rules of reading lines
    code, err = batch(lines)
    assert code == 2 and "out.jsonl was begun with format=1, and now it is format=" in err
    assert "name another file" in err and "--restart" in err
    meta.write_text(about)
    code, err = batch(lines, "--timeout", "60")
    assert code == 1 and Stub.starts == 1 and out.read_bytes() == before
    assert "nothing left to do: 4 lines were answered earlier" in err
    assert '1 line has an "error" in out.jsonl' in err
    asked = Stub.asked
    assert batch(lines, "--max-tokens", "5", "--restart")[0] == 1
    assert Stub.asked == asked + 4 and out.read_bytes() == before


def test_lines_with_errors_are_counted_and_after_ten_of_them_the_file_is_named(
    batch: Callable[..., Ran],
) -> None:
    wrong = [{"prompt": "a", "custom_id": f"c{i}", "temprature": 0} for i in range(13)]
    code, err = batch([*PROMPTS, *wrong])
    said, unknown = err.splitlines(), "temprature: unknown; did you mean 'temperature'?"
    assert code == 1 and sum(unknown in line for line in said) == 10
    assert any(line.startswith("inf: in.jsonl, line 5: temprature: unknown") for line in said)
    assert "inf: more lines have errors; all are in out.jsonl" in said
    assert said[-1] == 'inf: 13 lines have an "error" in out.jsonl'
    rows = read(Path("out.jsonl"))
    assert [row["line"] for row in rows] == list(range(1, 18))
    assert [row["custom_id"] for row in rows[4:]] == [f"c{i}" for i in range(13)]


def test_ctrl_c_says_that_the_same_command_resumes_and_keeps_finished_rows(
    batch: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` leaves it ignored
    monkeypatch.setattr(Stub, "stops_at", "p2")
    code, err = batch(PROMPTS)
    assert code == 130
    assert "inf: stopped; the same command resumes with the lines that out.jsonl lacks" in err
    kept = [row["prompt"] for row in read(Path("out.jsonl"))]
    assert kept[:2] == ["p0", "p1"] and "p2" not in kept
    monkeypatch.setattr(Stub, "stops_at", "")
    code, err = batch(PROMPTS)
    left = 4 - len(kept)
    assert code == 0 and f"{left} lines, {left} tokens" in err
    assert f"{len(kept)} answered earlier" in err
    assert [row["prompt"] for row in read(Path("out.jsonl"))] == ["p0", "p1", "p2", "p3"]
