"""`inf batch` through kills, signals and full disks at random moments: no row lost, none doubled.

One file of prompts for the whole storm: whatever ends a run, the same command resumes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import inf
from _inf.apps.cli import main
from inf import InferenceEngine
from tests.support.figures import Figures
from tests.support.json_lines import read, write
from tests.support.scripts import (
    GONE_SECONDS,
    INF,
    START_SECONDS,
    Script,
    descendants,
    script,
    until,
)

pytestmark = pytest.mark.soak

SEED = 20261121
ROWS = 4000
BAD = {7: "{", 301: '{"prompt": 5}', 1003: '{"body": {}}'}  # by the line's number, from 1
# Line 431's 87th token has a rival 2e-6 below it: there rounding, and so the batch, would decide.
LONGEST, MIDDLING = 60, 30
KILLS = ["scheduler", "command"] * 3
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP] * 2
# As a shell has them, and as `Popen` does where nobody caught the signal.
EXIT_CODES = {
    signal.SIGTERM: (-signal.SIGTERM,),
    signal.SIGHUP: (-signal.SIGHUP,),
    signal.SIGINT: (130, -signal.SIGINT),
}


def lines(rows: int) -> list[Any]:
    """Of all three forms, with answers of 10 to `LONGEST` tokens, and a few bad ones."""
    chance = random.Random(SEED)
    made: list[Any] = []
    for line in range(1, rows + 1):
        talk = [{"role": "user", "content": f"Count from {line}."}]
        body = {"messages": talk, "max_tokens": chance.randint(10, LONGEST)}
        forms: list[Any] = [
            {"prompt": f"Count from {line}.", "id": line},
            {"messages": talk, "metadata": {"id": line}},
            {"custom_id": f"{line}", "body": body},
        ]
        made.append(BAD.get(line, chance.choice(forms)))
    return made


def number(row: dict[str, Any]) -> int:
    """The line that a row answers."""
    return int(row.get("custom_id") or row.get("id") or row["metadata"]["id"])


def text(row: dict[str, Any]) -> str:
    if "response" in row:
        return str(row["response"]["body"]["choices"][0]["message"]["content"])
    return str(row["completion"] if "completion" in row else row["messages"][-1]["content"])


def undisturbed(tiny: InferenceEngine, source: list[Any]) -> dict[int, str]:
    """By its line, what `generate` answers greedily."""
    good = [each for each in source if isinstance(each, dict)]
    prompts = [
        each["body"]["messages"] if "body" in each else each.get("messages", each.get("prompt"))
        for each in good
    ]
    lengths = [each["body"]["max_tokens"] if "body" in each else MIDDLING for each in good]
    output = tiny.generate(prompts, temperature=0, max_tokens=lengths, ignore_eos=True)
    return dict(zip(map(number, good), output.completions, strict=True))


def arguments(source: Path, out: Path, config: Path) -> list[str]:
    options = ["--temperature", "0", "--max-tokens", str(MIDDLING), "--ignore-eos"]
    return ["batch", str(source), str(out), *options, "-c", str(config)]


class Storm:
    """The same command again and again, and what was seen of it."""

    def __init__(self, tiny: InferenceEngine, folder: Path) -> None:
        self.folder = folder
        self.lines = lines(ROWS)
        self.source, self.out = write(folder / "in.jsonl", self.lines), folder / "out.jsonl"
        config = folder / "tiny.yaml"
        config.write_text(json.dumps(tiny.config.to_dict()))
        self.arguments = arguments(self.source, self.out, config)
        self.chance = random.Random(SEED)
        self.runs = self.left = self.half_lines = 0
        self.ends: list[tuple[str, int, str]] = []

    def rows(self) -> int:
        return self.out.read_bytes().count(b"\n") if self.out.exists() else 0

    def run(self, what: str, harm: Callable[[Script], None]) -> None:
        """Until `harm` has ended it."""
        self.runs += 1
        folder = self.folder / f"run {self.runs}"
        with script(INF, folder, arguments=self.arguments) as run:
            harm(run)
            self.ends.append((what, run.exit_code(60), run.err))
            self.left += not until(lambda: not session(run), GONE_SECONDS)
        whole = not self.out.exists() or self.out.read_bytes().endswith(b"\n") or not self.rows()
        self.half_lines += not whole

    def after_more_rows(self, run: Script) -> None:
        wanted = self.rows() + self.chance.randint(1, 60)
        until(lambda: self.rows() >= wanted or run.process.status() == "zombie", START_SECONDS)
        time.sleep(self.chance.uniform(0, 0.5))

    def kill_scheduler(self, run: Script) -> None:
        self.after_more_rows(run)
        for child in descendants(run.process):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def kill_command(self, run: Script) -> None:
        self.after_more_rows(run)
        run.send(signal.SIGKILL)

    def signal(self, name: signal.Signals) -> Callable[[Script], None]:
        """At any moment: while it imports, starts its engine, or answers."""
        wait = self.chance.uniform(0.1, 20)

        def harm(run: Script) -> None:
            began = self.rows()
            until(lambda: self.rows() > began + 40, wait)
            run.send(name)

        return harm


def session(run: Script) -> list[psutil.Process]:
    """Whoever lives in a script's session, also without a parent."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == run.pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.fixture(scope="module")
def storm(tiny: InferenceEngine, tmp_path_factory: pytest.TempPathFactory) -> Storm:
    """All harms in random order, then the command until it is done."""
    storm = Storm(tiny, tmp_path_factory.mktemp("storm"))
    harms: list[tuple[str, Callable[[Script], None]]] = [
        (what, getattr(storm, f"kill_{what}")) for what in KILLS
    ]
    harms += [(name.name, storm.signal(name)) for name in SIGNALS]
    storm.chance.shuffle(harms)
    for what, harm in harms:
        storm.run(what, harm)
    assert storm.rows() < ROWS - len(BAD), "it was done before the storm was over; raise ROWS"
    storm.run("nothing", lambda run: run.exit_code(300) and None)
    return storm


def test_storm_loses_and_doubles_no_row_and_answers_as_without_it(
    storm: Storm, tiny: InferenceEngine, figures: Figures
) -> None:
    wanted = undisturbed(tiny, storm.lines)
    rows = [row for row in read(storm.out) if not row.get("error")]
    count = Counter(map(number, rows))
    errors = [row["line"] for row in read(storm.out) if row.get("error")]
    figures("batch", "seed, lines", (SEED, ROWS))
    figures("batch", "kill -9 of the scheduler, of the command", (3, 3))
    figures("batch", "rows lost", len(wanted.keys() - count.keys()))
    figures("batch", "rows doubled", sum(times > 1 for times in count.values()))
    wrong = sum(text(row) != wanted[number(row)] for row in rows)
    figures("batch", "answers unlike an undisturbed run's", wrong)
    assert [number(row) for row in rows] == sorted(wanted)
    assert {number(row): text(row) for row in rows} == wanted
    assert errors == sorted(BAD)


def test_each_end_of_a_run_has_its_exit_code_and_leaves_no_child_and_no_half_line(
    storm: Storm, figures: Figures
) -> None:
    codes: dict[str, tuple[int, ...]] = {each.name: EXIT_CODES[each] for each in SIGNALS}
    codes |= {"scheduler": (1,), "command": (-signal.SIGKILL,), "nothing": (1,)}  # bad lines
    figures("batch", "SIGTERM, SIGINT, SIGHUP to the command", len(SIGNALS))
    wrong = sum(code not in codes[what] for what, code, _ in storm.ends)
    figures("batch", "runs with another exit code than the right one", wrong)
    figures("batch", "runs that left a child", storm.left)
    for what, code, err in storm.ends:
        assert code in codes[what], (what, code, err)
        assert "Traceback" not in err or what == "SIGINT", (what, err)
    figures("batch", "half lines after kills and signals", storm.half_lines)
    assert storm.left == 0 and storm.half_lines == 0


# ─── A full disk ───

SMALL = 48 * 1024


@contextlib.contextmanager
def small_tmpfs(folder: Path) -> Iterator[Callable[[], None]]:
    """`folder` on a disk of `SMALL` bytes, until what is yielded is called."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield (
            lambda: (
                subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
                and None
            )
        )
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def small_files(folder: Path) -> Iterator[Callable[[], None]]:
    """`ulimit -f`; Python ignores the SIGXFSZ that would come with it."""
    old, most = resource.getrlimit(resource.RLIMIT_FSIZE)

    def grow() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (old, most))

    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, most))
    try:
        yield grow
    finally:
        grow()


@pytest.mark.parametrize("small", [small_tmpfs, small_files])
def test_full_disk_is_a_clear_stop_and_the_same_command_goes_on(
    small: Callable[[Path], contextlib.AbstractContextManager[Callable[[], None]]],
    tiny: InferenceEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    figures: Figures,
) -> None:
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(tiny))
    asked = lines(300)
    source = write(tmp_path / "in.jsonl", asked)
    config = write(tmp_path / "tiny.yaml", [tiny.config.to_dict()])
    (disk := tmp_path / "disk").mkdir()
    command = arguments(source, disk / "out.jsonl", config)
    stops = []
    with small(disk) as grow:
        for _ in range(3):  # full, and full again before the first row
            code = main(command)
            stops.append((code, capfd.readouterr().err))
        grow()
        assert main(command) == 1  # there is a bad line
        rows = [row for row in read(disk / "out.jsonl") if not row.get("error")]
    for code, err in stops:
        assert code == 1, err
        assert "the same command resumes" in err and "Traceback" not in err
        assert "No space left" in err or "File too large" in err
    wanted = undisturbed(tiny, asked)
    assert [number(row) for row in rows] == sorted(wanted)
    assert {number(row): text(row) for row in rows} == wanted
    figures("batch", f"{small.__name__}: stops, then rows lost or doubled", (len(stops), 0))
