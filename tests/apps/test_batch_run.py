"""A batch's promises, with a stub as the engine: order, resume at any byte, flat memory, what the
command checks before an engine starts, and its final report.

What a real engine does with it is in `engine/commands/test_batch.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import random
import signal
import tracemalloc
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inf
from _inf.apps import tally
from _inf.apps.batch import fingerprint
from _inf.apps.batch.fingerprint import FORMAT
from _inf.apps.batch.lines import parse
from _inf.apps.batch.output_file import OutputFile
from _inf.apps.batch.runner import answer_each, keep_in, unanswered
from _inf.apps.tally import Tally
from _inf.errors import ConfigError, EngineDeadError, GenerationTimeout, InferenceError
from _inf.request.seeds import prompt_seed
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.turns import Transcript
from tests.support.json_lines import read, write
from tests.support.stub_engine import StubEngine

LONG, LATE = "too long", "too late"
# Prompts whose rows are aborted, with what a row says of it: its error and its limit.
ABORTED = {
    LONG: ("PromptTooLongError: prompt 0 has 900 tokens", None),
    "too complex": ("RequestFailure: The engine aborted the request: its grammar", None),
    "refused": ("ToolError: create() failed", {}),
    "given up": (None, {"limit": "over_sample_rate"}),
    "silent": (None, {}),
}
ABOUT = {"model": "m", "input": "i"}
SOURCE, OUT = Path("in.jsonl"), Path("out.jsonl")


class Echo(StubEngine):
    """Answers after a moment that differs from prompt to prompt, so that rows end out of order."""

    def __init__(self, dies_at: str | None = None) -> None:
        self.dies_at = dies_at
        self.asked, self.seeds = list[str](), list[Any]()
        self.most = self._under_way = 0

    async def agenerate(self, prompt: Any, **params: Any) -> GenerationOutput:
        self.asked.append(prompt)
        self.seeds.append(params.get("seed"))
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        for _ in range(random.Random(ascii(prompt)).randrange(5)):
            await asyncio.sleep(0)
        self._under_way -= 1
        if prompt == self.dies_at:
            await asyncio.sleep(0.01)  # those before end before
            raise EngineDeadError("the scheduler (pid 7) died with exit code -9")
        if prompt == LATE:
            raise GenerationTimeout(LATE)
        assert params["on_error"] == "row"
        if prompt not in ABORTED:
            row = GenerationRow(f"<{prompt}>", [], [], finish_reason="stop", completion_tokens=1)
            return GenerationOutput([row] * params.get("n", 1))
        error, turns = ABORTED[prompt]
        said = None if turns is None else Transcript(messages=[], limit=turns.get("limit"))
        aborted = {"finish_reason": "abort", "error": error, "transcript": said}
        return GenerationOutput([GenerationRow("", [], [], **aborted)])


def prompt(text: str) -> str:
    return json.dumps({"prompt": text})


def run(
    engine: Any,
    *,
    restart: bool = False,
    on_error: Any = lambda line, reason: None,
    **params: Any,
) -> Tally:
    with OutputFile(OUT) as file:
        file.begin(ABOUT, restart)
        total = sum(1 for _ in unanswered(SOURCE, file))
        counts = Tally(file.answered + total, file.answered, file.answered)
        jobs = (parse(text, line) for line, text in unanswered(SOURCE, file))
        with counts.showing():
            asyncio.run(answer_each(engine, jobs, params, keep_in(file, counts, on_error)))
        return counts


@contextlib.contextmanager
def disk_of(size: int) -> Iterator[None]:
    """Takes that many bytes more, and then none: half a row may be written."""
    real = os.write

    def write(file: int, data: Any) -> int:
        nonlocal size
        if not size:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = real(file, data[:size])
        size -= written
        return written

    with mock.patch("_inf.apps.batch.output_file.os.write", write):
        yield


# ─── Order and errors ───


def test_each_line_has_its_row_in_order_and_an_error_stands_in_its_place():
    lines = [prompt(f"p{i}") for i in range(50)]
    lines[7], lines[20] = "{", ""
    lines[30:36] = map(prompt, [LATE, *ABORTED])
    lines[31] = json.dumps({"prompt": LONG, "custom_id": "long"})
    lines[0] = "\ufeff" + json.dumps({"line": None, "prompt": "p0"})  # of a table, with a mark
    wrong = {
        8: ("invalid_request", "it is not JSON"),
        31: ("timeout", LATE),
        32: ("invalid_request", "the prompt has 900 tokens"),
        33: ("server_error", "its grammar"),  # the engine gave this request up
        34: ("aborted", "create() failed"),
        35: ("aborted", "over_sample_rate"),
        36: ("aborted", "aborted before its answer"),
    }
    engine, told = Echo(), list[int]()
    write(SOURCE, lines)
    stats = run(engine, on_error=lambda line, reason: told.append(line))
    rows = {row["line"]: row for row in read(OUT)}
    assert list(rows) == [line for line in range(1, 51) if line != 21]
    for line, row in rows.items():
        if line not in wrong:
            assert (row["prompt"], row["completion"]) == (f"p{line - 1}", f"<p{line - 1}>")
            continue
        code, message = wrong[line]
        assert (row["response"], row["error"]["code"]) == (None, code)
        assert message in row["error"]["message"]
    assert (rows[8]["custom_id"], rows[32]["custom_id"]) == (None, "long")
    assert sorted(told) == [*wrong]
    assert (stats.rows, stats.tokens) == (49, 42)
    assert 1 < engine.most <= 8  # one more line waits for each place
    before, again = OUT.read_bytes(), Echo()
    run(again)  # asks again for what was refused alone
    assert sorted(again.asked) == sorted([LATE, *ABORTED]) and OUT.read_bytes() == before


def test_last_row_of_a_line_counts_and_a_file_in_order_is_not_written_again():
    failed = {"error": {"code": "timeout", "message": "too late"}}
    half = "fünf \ud800"  # the half of a character
    with contextlib.suppress(KeyboardInterrupt), OutputFile(OUT) as file:
        file.begin(ABOUT, False)
        for line, row in ((5, {"x": half}), (2, failed), (1, {"x": "one"}), (2, {"x": "two"})):
            file.append(line, row)
            assert file.has_answer(line) is (row is not failed)
        wanted = list(file.rows())
        assert [(row["line"], row["x"]) for row in wanted] == [(1, "one"), (2, "two"), (5, half)]
        assert (file.answered, file.failed, file.has_row(3)) == (3, 0, False)
        raise KeyboardInterrupt
    assert [row["line"] for row in read(OUT)] == [5, 2, 1, 2]
    inodes = set()
    for _ in range(2):
        with OutputFile(OUT) as file:
            file.begin(ABOUT, False)
        assert read(OUT) == wanted
        inodes.add(OUT.stat().st_ino)
    assert len(inodes) == 1


def test_one_seed_gives_each_line_the_same_noise_whatever_was_done_before():
    lines = [prompt(f"p{i}") for i in range(6)]
    lines[2], lines[4] = json.dumps({"prompt": "own", "seed": 7}), prompt(LONG)
    write(SOURCE, lines)
    whole, again = Echo(), Echo()
    run(whole, seed=5)
    wanted = [prompt_seed(5, index) for index in range(6)]
    wanted[2] = 7
    assert whole.seeds == wanted and len(set(wanted)) == 6
    OUT.write_bytes(b"".join(OUT.read_bytes().splitlines(keepends=True)[:3]))
    run(again, seed=5)
    assert (again.asked, again.seeds) == (["p3", LONG, "p5"], wanted[3:])


def test_engine_that_dies_ends_the_run_and_the_next_one_goes_on_and_says_how_far_it_is(
    monkeypatch, capsys
):
    prompts = [f"p{i}" for i in range(20)]
    again = Echo()
    write(SOURCE, [*map(prompt, prompts)])
    with pytest.raises(EngineDeadError, match="exit code -9"):
        run(Echo(dies_at="p9"))
    assert capsys.readouterr().err == ""  # within the first half minute
    answered = {row["prompt"] for row in read(OUT)}
    assert answered >= {*prompts[:9]} and "p9" not in answered
    monkeypatch.setattr(tally, "SAY_SECONDS", 0)
    run(again)
    assert {*again.asked} == {*prompts} - answered
    assert [row["prompt"] for row in read(OUT)] == prompts
    said = capsys.readouterr().err.splitlines()  # where stderr is no terminal
    assert len(said) == 20 - len(answered)
    assert said[0].startswith(f"inf: {len(answered) + 1} of 20 lines, 1 tokens, ")


# ─── Resume ───

LINES = [prompt("a"), prompt("bß\n" * 9), prompt(LONG), "{", ""]


@settings(max_examples=25, deadline=None)
@given(lines=st.lists(st.sampled_from(LINES), max_size=14), share=st.floats(0, 1))
def test_run_on_a_disk_that_fills_up_goes_on_to_the_same_file(lines, share):
    write(SOURCE, lines)
    run(Echo(), restart=True)
    whole = OUT.read_bytes()
    size = int(share * len(whole))
    refused = pytest.raises(InferenceError, match="out.jsonl: No space left.*the same command")
    with disk_of(size), refused if size < len(whole) else contextlib.nullcontext():
        run(Echo(), restart=True)
    kept = OUT.read_bytes()
    assert kept.endswith(b"\n") or not kept
    answered = sum("error" not in row for row in read(OUT))
    again = Echo()
    run(again)
    assert OUT.read_bytes() == whole
    assert len(again.asked) == sum(line not in ("{", "") for line in lines) - answered
    OUT.write_bytes(whole[:size])  # as a power cut leaves it
    run(Echo())
    assert OUT.read_bytes() == whole


def test_disk_that_is_full_before_the_first_row_leaves_a_file_that_resumes():
    write(SOURCE, [prompt("a")])
    full = OSError(errno.ENOSPC, "No space left on device")
    said = "out.meta.json.*No space left on device.*the same command"
    with mock.patch("os.fsync", side_effect=full), pytest.raises(InferenceError, match=said):
        run(Echo())
    assert run(Echo()).rows == 1


# ─── Refusals ───


def test_file_that_is_no_runs_is_left_alone_and_a_damaged_row_is_named():
    write(SOURCE, [prompt("a"), prompt("b")])
    OUT.write_text("my notes, without an end")
    with pytest.raises(ConfigError, match=r"out\.meta\.json is missing"):
        run(Echo())
    assert OUT.read_text() == "my notes, without an end"
    run(Echo(), restart=True)
    first, second = OUT.read_text().splitlines()
    OUT.write_text(f"{first[:9]}\n{second}\n")
    with pytest.raises(ConfigError, match="out.jsonl, line 1: not a row .* --restart"):
        run(Echo())


def test_second_run_on_the_same_file_is_refused():
    with OutputFile(OUT), pytest.raises(ConfigError, match="another run"):
        OutputFile(OUT)
    with OutputFile(OUT):
        pass


# ─── Memory ───


def test_memory_is_flat_over_a_file_of_many_times_its_bound():
    with open(SOURCE, "w") as file:
        file.writelines(f'{{"prompt": "{i:08000}"}}\n' for i in range(500))
    engine = Echo()
    engine.asked = engine.seeds = deque(maxlen=0)
    tracemalloc.start()
    try:
        stats = run(engine)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert stats.rows == 500 and peak < 2_000_000 < 7_000_000 < OUT.stat().st_size


# ─── The command ───

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
def batch(monkeypatch, command):
    """`batch(lines, *options)` answers in.jsonl into out.jsonl; returns exit code and stderr."""
    monkeypatch.setattr(Stub, "starts", 0)
    monkeypatch.setattr(inf, "InferenceEngine", Stub)

    def run(lines: list[Any], *options: str) -> Ran:
        code, _, err = command("batch", write(SOURCE, lines), OUT, *options)
        return code, err

    return run


def test_custom_id_of_two_lines_is_refused_with_both_numbers(batch):
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    lines = [{"custom_id": name, "body": body} for name in ("a", "b", "a")]
    code, err = batch([lines[0], "", *lines[1:]])
    assert (code, Stub.starts) == (2, 0)
    assert "in.jsonl, line 4: line 1 also has the custom_id 'a'" in err
    assert not OUT.exists()


def test_changed_options_are_refused_and_finished_files_start_no_engine(batch):
    lines = [*PROMPTS, "{"]
    assert batch(lines)[0] == 1
    meta = Path("out.meta.json")
    before, about = OUT.read_bytes(), meta.read_text()
    code, err = batch(lines, "--max-tokens", "5")
    assert code == 2 and "out.jsonl was started with parameters=" in err
    assert "name another file" in err and "--restart" in err and meta.read_text() == about
    assert json.loads(about)["format"] == FORMAT  # of the rules of reading lines
    code, err = batch(lines, "--timeout", "60")
    assert code == 1 and Stub.starts == 1 and OUT.read_bytes() == before
    assert "nothing left to do: 4 lines were answered earlier" in err
    assert '1 line has an "error" in out.jsonl' in err
    asked = Stub.asked
    assert batch(lines, "--max-tokens", "5", "--restart")[0] == 1
    assert Stub.asked == asked + 4 and OUT.read_bytes() == before


def test_lines_with_errors_are_counted_and_after_ten_of_them_the_file_is_named(batch):
    wrong = [{"prompt": "a", "custom_id": f"c{i}", "temprature": 0} for i in range(13)]
    code, err = batch([*PROMPTS, *wrong])
    said = err.splitlines()
    assert code == 1 and sum("temprature: unknown key" in line for line in said) == 10
    assert "inf: more lines have errors; all are in out.jsonl" in said
    assert said[-1] == 'inf: 13 lines have an "error" in out.jsonl'


def test_ctrl_c_says_that_the_same_command_resumes_and_keeps_finished_rows(batch, monkeypatch):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` leaves it ignored
    monkeypatch.setattr(Stub, "stops_at", "p2")
    code, err = batch(PROMPTS)
    assert code == 130
    assert "inf: stopped; the same command resumes with the lines that out.jsonl lacks" in err
    kept = [row["prompt"] for row in read(OUT)]
    assert kept[:2] == ["p0", "p1"] and "p2" not in kept
    monkeypatch.setattr(Stub, "stops_at", "")
    code, err = batch(PROMPTS)
    left = 4 - len(kept)
    assert code == 0 and f"{left} lines, {left} tokens" in err
    assert f"{len(kept)} answered earlier" in err
    assert [row["prompt"] for row in read(OUT)] == ["p0", "p1", "p2", "p3"]


def test_file_of_another_server_or_tokenizer_is_another_run_s():
    server = {"rollout": {"name": "openai"}, "model_path": "m", "base_url": "http://127.0.0.1:1/v1"}
    others = ({"base_url": "http://127.0.0.1:2/v1"}, {"tokenizer_path": "t"}, {"model_path": "n"})
    configs = [inf.Config(**server), *(inf.Config(**(server | other)) for other in others)]
    assert len({json.dumps(fingerprint.of_config(config)) for config in configs}) == 4
