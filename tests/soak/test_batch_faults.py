"""`inf batch` through kills and signals at random moments: no row lost, none doubled.

One file of prompts for the whole storm: whatever ends a run, the same command resumes.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal

import psutil
import pytest

from tests.support.json_lines import read, write
from tests.support.scripts import INF, START_SECONDS, ended, script, until

pytestmark = pytest.mark.soak

SEED, ROWS = 20261121, 3000
BAD = {7: "{", 301: '{"prompt": 5}', 1003: '{"body": {}}'}  # by the line's number, from 1
ASKED = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
# By harm: exit codes as a shell has them, and as `Popen` does where nobody caught the signal.
EXIT_CODES = {
    "the scheduler is killed": (1,),
    signal.SIGKILL: (-signal.SIGKILL,),
    signal.SIGTERM: (-signal.SIGTERM,),
    signal.SIGINT: (130, -signal.SIGINT),
    signal.SIGHUP: (-signal.SIGHUP,),
    "nothing": (1,),  # there are bad lines
}


def test_storm_loses_and_doubles_no_row_and_answers_as_without_it(tiny, tmp_path):
    """All harms in random order, then the command until it is done: it has answered each line once,
    in its order, and as `generate` does."""
    prompts = {line: f"Count from {line}." for line in range(1, ROWS + 1) if line not in BAD}
    lines = [
        {"prompt": prompts[line], "id": line} if line in prompts else BAD[line]
        for line in range(1, ROWS + 1)
    ]
    source, out, config = (tmp_path / name for name in ("in.jsonl", "out.jsonl", "tiny.yaml"))
    config.write_text(json.dumps(tiny.config.to_dict()))
    options = "--max-tokens 30 --temperature 0 --ignore-eos -c".split()
    arguments = ["batch", str(write(source, lines)), str(out), *options, str(config)]
    chance = random.Random(SEED)
    harms = [*EXIT_CODES][:-1] * 2
    chance.shuffle(harms)

    def rows() -> int:
        return out.read_bytes().count(b"\n") if out.exists() else 0

    for number, harm in enumerate([*harms, "nothing"]):
        assert harm != "nothing" or rows() < ROWS - 200, "done before the storm was over"
        # A signal comes at any moment: while it imports, starts its engine, or answers.
        caught = harm in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        seconds = chance.uniform(0.1, 20) if caught else START_SECONDS
        wanted = rows() + chance.randint(1, 60) if harm != "nothing" else ROWS
        with script(INF, tmp_path / f"run {number}", arguments=arguments) as run:
            process = run.process
            until(lambda: rows() >= wanted or process.status() == "zombie", seconds)  # noqa: B023
            family = run.meet()
            if isinstance(harm, signal.Signals):
                run.send(harm)
            elif harm != "nothing":
                for child in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
            done = ended(run)
        assert done.exit_code in EXIT_CODES[harm] and done.survivors == [], (harm, done)
        assert "Traceback" not in done.err or harm == signal.SIGINT, done.err
        assert not rows() or out.read_bytes().endswith(b"\n")
    found = read(out)
    answered = {row["id"]: row["completion"] for row in found if not row.get("error")}
    wanted = tiny.generate([*prompts.values()], **ASKED).completions
    assert answered == dict(zip(prompts, wanted, strict=True))
    assert [row["line"] for row in found] == [*range(1, ROWS + 1)]
