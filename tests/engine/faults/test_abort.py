"""Calls that end before their answer: Ctrl-C, a timeout, a cancelled task.

The requests end in the engine too, and the next call is answered as ever.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time

import psutil
import pytest

from _inf.runtime.calls import CancelToken
from inf import GenerationTimeout, InferenceEngine
from tests.support.running import begun
from tests.support.schedulers import in_flight
from tests.support.scripts import QUESTION, START_SECONDS, alive, command_line, ended, script, until

# Ten seconds of work; most of its rows wait while others run.
MANY = {"prompts": ["One"] * 400, "max_tokens": 120, "ignore_eos": True}

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


# ─── Timeouts and cancellation ───


def goes_idle(engine: InferenceEngine) -> bool:
    """Whether nothing is in flight soon, and the process that computes stops too."""
    if not until(lambda: in_flight(engine) == 0, 10):
        return False
    own = engine.config.rollout.name == "hf"
    scheduler = psutil.Process(None if own else engine.rollout.host.children[0].pid)

    def rests() -> bool:
        before = sum(scheduler.cpu_times()[:2])
        time.sleep(0.5)
        return sum(scheduler.cpu_times()[:2]) - before < 0.2

    return until(rests, 10)


def test_call_over_its_timeout_is_aborted_in_the_engine(tiny, answer):
    started = time.monotonic()
    with pytest.raises(GenerationTimeout, match="^timeout: "):
        tiny.generate(**MANY, timeout=1)
    assert time.monotonic() - started >= 1
    assert goes_idle(tiny)
    assert tiny.generate(**QUESTION).token_ids == answer


def test_cancelled_agenerate_is_aborted_in_the_engine(tiny, answer):
    async def cancel_in_the_middle() -> list[list[int]]:
        call = asyncio.ensure_future(tiny.agenerate(**MANY))
        while not in_flight(tiny):
            await asyncio.sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return (await tiny.agenerate(**QUESTION)).token_ids

    assert asyncio.run(asyncio.wait_for(cancel_in_the_middle(), 60)) == answer
    assert goes_idle(tiny)


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
