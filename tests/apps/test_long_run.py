"""A long run's promises, with a stub in the engine's place: order, resume at any byte, flat memory.

What a real engine does with it is in `engine/test_batch.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from _inf.apps.batch.run import jobs
from _inf.apps.batch.run_files import Fault, RunFiles
from _inf.apps.batch.runner import RunStats, answer
from _inf.errors import ConfigError, EngineDeadError, InferenceError, PromptError
from _inf.request.sampling import prompt_seed
from _inf.response.output import GenerationOutput

LONG = "too long"
ABOUT = {"model": "m", "input": "i"}


class Echo:
    """Answers after a moment that differs from prompt to prompt, so that rows end out of order."""

    def __init__(self, dies_at: str | None = None) -> None:
        self.dies_at = dies_at
        self.asked: list[str] = []
        self.seeds: dict[str, Any] = {}
        self.most = self._under_way = 0

    def generate(self, prompts: list[Any], **params: Any) -> GenerationOutput:
        assert prompts == []
        return GenerationOutput.empty()

    async def agenerate(self, prompt: str, **params: Any) -> GenerationOutput:
        self.asked.append(prompt)
        self.seeds[prompt] = params.get("seed")
        self._under_way += 1
        self.most = max(self.most, self._under_way)
        for _ in range(random.Random(ascii(prompt)).randrange(5)):
            await asyncio.sleep(0)
        self._under_way -= 1
        if prompt == self.dies_at:
            raise EngineDeadError("the scheduler (pid 7) died with exit code -9")
        if prompt == LONG:
            raise PromptError("prompt 0 has 900 tokens")
        names = ("prompt_tokens", "completion_tokens", "cached_tokens")
        about = {"finish_reason": "stop", **dict.fromkeys(names, 1)}
        return GenerationOutput([f"<{prompt}>"], [[]], [[]], [about])


def write(folder: Path, lines: list[str]) -> Path:
    source = folder / "in.jsonl"
    source.write_text("".join(f"{line}\n" for line in lines))
    return source


def prompt(text: str) -> str:
    return json.dumps({"prompt": text})


def run(engine: Echo, source: Path, out: Path, **how: Any) -> RunStats:
    with RunFiles(out) as record:
        record.begin(how.pop("about", ABOUT), how.pop("restart", False))
        total, params = len(source.read_bytes().splitlines()), how.pop("params", {})
        return answer(engine, jobs(source, "m"), record, params, at_once=4, total=total, **how)


def files(out: Path) -> tuple[bytes, bytes]:
    errors = out.with_suffix(".errors.jsonl")
    return out.read_bytes(), errors.read_bytes() if errors.exists() else b""


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

    with mock.patch("_inf.apps.batch.append_log.os.write", write):
        yield


# ─── Order and faults ───


def test_rows_keep_the_order_of_their_lines_and_faults_their_numbers(tmp_path: Path) -> None:
    lines = [prompt(f"p{i}") for i in range(50)]
    lines[7], lines[20] = "{", ""
    lines[30] = json.dumps({"prompt": LONG, "custom_id": "long"})
    engine, heard = Echo(), list[Fault]()
    tally = run(engine, write(tmp_path, lines), tmp_path / "out.jsonl", hear=heard.append)
    rows, errors = (
        list(map(json.loads, file.splitlines())) for file in files(tmp_path / "out.jsonl")
    )
    wanted = [f"p{i}" for i in range(50) if i not in (7, 20, 30)]
    assert [row["prompt"] for row in rows] == wanted
    assert [row["completion"] for row in rows] == [f"<{each}>" for each in wanted]
    assert [row["line"] for row in errors] == [8, 31]
    assert errors[1]["reason"] == "the prompt has 900 tokens"
    assert [row["custom_id"] for row in errors] == [None, "long"]
    assert [fault.line for fault in heard] == [8, 31]
    assert (tally.rows, tally.tokens) == (47, 47)
    assert 1 < engine.most <= 4


def test_one_seed_gives_each_line_the_same_noise_whatever_was_done_before(tmp_path: Path) -> None:
    lines = [prompt(f"p{i}") for i in range(6)]
    lines[2], lines[4] = json.dumps({"prompt": "own", "seed": 7}), prompt(LONG)
    source, out = write(tmp_path, lines), tmp_path / "out.jsonl"
    wanted = [prompt_seed(5, index) for index in range(6)]
    wanted[2] = 7
    whole, again = Echo(), Echo()
    run(whole, source, out, params={"seed": 5})
    assert [whole.seeds[json.loads(line)["prompt"]] for line in lines] == wanted
    assert wanted[0] == 5 and len(set(wanted)) == 6
    kept = out.read_bytes().splitlines(keepends=True)[:3]
    out.write_bytes(b"".join(kept))
    run(again, source, out, params={"seed": 5})
    assert again.seeds == {name: whole.seeds[name] for name in ("p3", "p5")}


def test_engine_that_dies_ends_the_run_after_the_rows_before(tmp_path: Path) -> None:
    source = write(tmp_path, [prompt(f"p{i}") for i in range(20)])
    out = tmp_path / "out.jsonl"
    with pytest.raises(EngineDeadError, match="exit code -9"):
        run(Echo(dies_at="p9"), source, out)
    assert [json.loads(row)["prompt"] for row in files(out)[0].splitlines()] == [
        f"p{i}" for i in range(9)
    ]
    second = Echo()
    run(second, source, out)
    assert second.asked == [f"p{i}" for i in range(9, 20)]
    assert len(files(out)[0].splitlines()) == 20


# ─── Resume ───


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(
        st.sampled_from([prompt("a"), prompt("bß\n" * 9), prompt(LONG), "{", "", prompt("\ud800")]),
        max_size=14,
    ),
    share=st.floats(0, 1),
)
def test_run_stopped_at_any_byte_goes_on_to_the_same_files(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], share: float
) -> None:
    folder = tmp_path_factory.mktemp("run")
    source = write(folder, lines)
    run(Echo(), source, folder / "whole.jsonl")
    whole = files(folder / "whole.jsonl")
    size = int(share * len(b"".join(whole)))
    with disk_of(size), contextlib.suppress(InferenceError):
        run(Echo(), source, folder / "out.jsonl")
    assert len(b"".join(files(folder / "out.jsonl"))) == size
    again = Echo()
    run(again, source, folder / "out.jsonl")
    assert files(folder / "out.jsonl") == whole
    assert len(again.asked) <= len(lines)


@settings(max_examples=40, deadline=None)
@given(share=st.floats(0, 1))
def test_output_cut_at_any_byte_goes_on_to_the_same_output(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    folder = tmp_path_factory.mktemp("run")
    source = write(folder, [prompt("a"), "{", prompt("b"), prompt(LONG), prompt("c"), prompt("d")])
    out = folder / "out.jsonl"
    run(Echo(), source, out)
    whole = files(out)
    out.write_bytes(whole[0][: int(share * len(whole[0]))])
    run(Echo(), source, out)
    assert files(out) == whole


def test_full_disk_is_a_sentence_that_says_how_to_go_on(tmp_path: Path) -> None:
    with disk_of(5), pytest.raises(InferenceError) as failure:
        run(Echo(), write(tmp_path, [prompt("a")]), tmp_path / "out.jsonl")
    for words in ("out.jsonl", "No space left on device", "the same command"):
        assert words in str(failure.value)


def test_disk_that_is_full_before_the_first_row_is_the_same_sentence(tmp_path: Path) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    source, out = write(tmp_path, [prompt("a")]), tmp_path / "out.jsonl"
    with mock.patch.object(Path, "write_text", side_effect=full):
        with pytest.raises(InferenceError, match="out.meta.json: No space left .* same command"):
            run(Echo(), source, out)
    assert run(Echo(), source, out).rows == 1


def test_finished_run_asks_nothing_again(tmp_path: Path) -> None:
    source = write(tmp_path, [prompt("a"), "{", prompt(LONG)])
    run(Echo(), source, tmp_path / "out.jsonl")
    before, again = files(tmp_path / "out.jsonl"), Echo()
    tally = run(again, source, tmp_path / "out.jsonl")
    assert (again.asked, tally.rows, files(tmp_path / "out.jsonl")) == ([], 0, before)


# ─── Refusals ───


def test_other_fingerprint_is_refused_by_name_until_restart(tmp_path: Path) -> None:
    source, out = write(tmp_path, [prompt("a"), "{"]), tmp_path / "out.jsonl"
    run(Echo(), source, out)
    before = files(out)
    with pytest.raises(
        ConfigError, match=r"begun with model='m', and now it is model='other'.*--restart"
    ):
        run(Echo(), source, out, about={**ABOUT, "model": "other"})
    assert files(out) == before
    again = Echo()
    run(again, source, out, about={**ABOUT, "model": "other"}, restart=True)
    assert again.asked == ["a"] and files(out) == before
    run(Echo(), source, out, about={**ABOUT, "model": "other"})


def test_file_that_no_run_wrote_is_left_alone(tmp_path: Path) -> None:
    source, out = write(tmp_path, [prompt("a")]), tmp_path / "out.jsonl"
    out.write_text("my notes, without an end")
    with pytest.raises(ConfigError, match=r"no out\.meta\.json"):
        run(Echo(), source, out)
    assert out.read_text() == "my notes, without an end"


def test_second_run_on_the_same_file_is_refused(tmp_path: Path) -> None:
    with RunFiles(tmp_path / "out.jsonl"):
        with pytest.raises(ConfigError, match="another run"):
            RunFiles(tmp_path / "out.jsonl")
    RunFiles(tmp_path / "out.jsonl").__exit__()


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no/out.jsonl.*No such file"):
        RunFiles(tmp_path / "no" / "out.jsonl")


# ─── Memory ───


def test_memory_is_flat_over_100000_lines(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with open(source, "w") as file:
        file.writelines(f'{{"prompt": "{i:0200}"}}\n' for i in range(100_000))

    class Sparing(Echo):
        async def agenerate(self, prompt: str, **params: Any) -> GenerationOutput:
            output = await super().agenerate(prompt, **params)
            self.asked.clear()
            self.seeds.clear()
            return output

    tracemalloc.start()
    try:
        with mock.patch(
            "_inf.apps.batch.append_log.os.fsync", lambda file: None
        ):  # the disk's speed is not the subject
            tally = run_without_reading(Sparing(), source, out)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert tally.rows == 100_000
    assert out.stat().st_size > 50_000_000
    assert peak < 2_000_000


def run_without_reading(engine: Echo, source: Path, out: Path) -> RunStats:
    with RunFiles(out) as record:
        record.begin(ABOUT, False)
        return answer(engine, jobs(source, "m"), record, {}, at_once=16, total=100_000)
