"""Calls that end before their answer: Ctrl-C, `sys.exit`, a timeout beside another call.

Other timeouts, and cancelled tasks: `answers/test_stream.py`.
"""

from __future__ import annotations

import asyncio
import random
import signal

import pytest

from _inf.runtime.calls import CancelToken
from inf import GenerationTimeout
from tests.support.running import begun
from tests.support.scripts import START_SECONDS, alive, command_line, ended, script, until

# ─── Ctrl-C ───

INTERRUPTED = """
import asyncio, signal, sys, threading, time
from inf import EngineDeadError

signal.signal(signal.SIGINT, lambda *_: None)  # a caller that does not mind
try:
    e = engine()
    say("started")
except EngineDeadError as failure:
    say("started", str(failure))
    e = engine()
signal.signal(signal.SIGINT, signal.default_int_handler)
manager = e.rollout._engine.tokenizer_manager

def speak():
    while not manager.rid_to_state:
        time.sleep(0.02)
    say("generating")

def interrupted(call):
    threading.Thread(target=speak, daemon=True).start()
    try:
        call()
        say("caught", None)
    except KeyboardInterrupt:
        say("caught", e.generate(**QUESTION).token_ids)

interrupted(lambda: e.generate(["One", "Two"], **LONG))
interrupted(lambda: e.generate(["One", "Two"], **LONG))
interrupted(lambda: asyncio.run(e.agenerate(["One", "Two"], **LONG)))
say("left", len(manager.rid_to_state))
sys.exit(3)
"""


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A script that is interrupted as its engine starts, and three times in the middle of an
    answer; then it calls sys.exit."""
    with script(INTERRUPTED, tmp_path_factory.mktemp("ctrl_c")) as run:

        def starts() -> bool:
            return any("spawn_main" in command_line(process) for process in alive(run.meet()))

        assert until(starts, START_SECONDS)
        run.send_group(signal.SIGINT)
        report = {"failure": run.hear("started")}
        report["caught"] = []
        for send in (run.send, run.send_group, run.send_group):
            run.hear("generating")
            send(signal.SIGINT)
            report["caught"].append(run.hear("caught", 30.0))
        yield report | {"left": run.hear("left"), "end": ended(run)}


@pytest.mark.slow
def test_ctrl_c_reaches_the_caller_whose_engine_forgets_the_requests_and_still_answers(
    interrupted, answer
):
    assert interrupted["failure"] is None  # one that the caller ignored while its engine started
    assert interrupted["caught"] == [answer] * 3
    assert interrupted["left"] == 0


@pytest.mark.slow
def test_sys_exit_in_the_middle_keeps_its_code_and_leaves_no_child(interrupted):
    end = interrupted["end"]
    assert (end.exit_code, end.err, end.survivors) == (3, "", [])


# ─── Timeouts and flushes ───


def test_timed_out_call_leaves_another_one_alone(tiny):
    wanted = {"max_tokens": 600, "ignore_eos": True, "temperature": 0}
    alone = tiny.generate("Three", **wanted).token_ids  # half a second's work
    other = begun(lambda: tiny.generate("Three", timeout=60, **wanted))
    with pytest.raises(GenerationTimeout):
        tiny.generate("One", max_tokens=600, ignore_eos=True, timeout=0.05)
    assert other.result(60).token_ids == alone


@pytest.mark.verl
def test_flushes_of_calls_that_end_together_or_are_given_up_let_the_next_one_through(tiny):
    engine, chance = tiny.rollout._engine, random.Random(0)

    async def flush_often() -> None:
        for _ in range(100):
            await asyncio.sleep(chance.random() / 500)
            await engine.flush_cache()

    async def all_of_them() -> None:
        flush = asyncio.ensure_future(engine.flush_cache())
        for _ in range(3):  # sent, and not answered yet
            await asyncio.sleep(0)
        flush.cancel()
        await asyncio.wait({flush})
        await asyncio.wait_for(asyncio.gather(*(flush_often() for _ in range(4))), 60)

    tiny.rollout.host.run(all_of_them(), CancelToken())
