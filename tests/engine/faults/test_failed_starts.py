"""Starts that fail, and a scheduler that raises: the exceptions, and what is left behind."""

import contextlib
import re

import pytest

from tests.support.scripts import ended, script

pytestmark = [pytest.mark.slow, pytest.mark.verl]  # six starts
TROUBLED = """
import gc, subprocess, threading, time, unittest.mock
import psutil
from inf import EngineDeadError, InferenceError
from _inf.runtime.fork_server import ForkedProcess
from _inf.runtime.calls import CancelToken

stranger = subprocess.Popen(["sleep", "300"])

def command(process):
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # it ended a moment ago
        return ""

def children():
    found = psutil.Process().children(recursive=True)
    found = {p: command(p) for p in found if p.pid != stranger.pid}
    return {p: words for p, words in found.items() if words and "resource_tracker" not in words}

def failure(**sglang):
    try:
        engine(engine_kwargs={"sglang": sglang})
    except Exception as failure:
        return [isinstance(failure, InferenceError), str(failure)]

def kill():
    while not (found := [p for p, words in children().items() if "spawn_main" in words]):
        time.sleep(0.05)
    time.sleep(1)
    found[0].kill()

def start_and_kill(process, start=ForkedProcess.start):
    start(process)
    process.kill()

say("in the child", failure(attention_backend="nonsense"))
say("in the parent", failure(quantization="nonsense"))
say("beside the child", failure(speculative_algorithm="nonsense"))
threading.Thread(target=kill).start()
say("killed importing", failure())
with unittest.mock.patch.object(ForkedProcess, "start", start_and_kill):
    say("killed", failure())
say("children", list(children().values()))
say("stranger", stranger.poll())
stranger.kill()
gc.collect()
say("collected")
e = engine()
say("after all", e.generate(**QUESTION).token_ids)
raw = e.rollout._engine.async_generate(
    input_ids=[[10**6]], sampling_params=[{"max_new_tokens": 4}]  # no such token: it raises
)
for name, call in {
    "crash": lambda: e.rollout.host.run(raw, CancelToken()),
    "later": lambda: e.generate("Are you there?"),
}.items():
    try:
        call()
    except EngineDeadError as failure:
        say(name, str(failure))
e.restart()
say("restarted", e.generate(**QUESTION).token_ids)
raise RuntimeError("an unhandled one")
"""


@pytest.fixture(scope="module")
def troubled(tmp_path_factory):
    """Five starts that fail, what is left of them, and a sixth whose scheduler raises; it
    restarts, and ends by an exception of the script's own. Told as far as the script came."""
    names = ["in the child", "in the parent", "beside the child", "killed importing", "killed"]
    names += ["children", "stranger"]
    with script(TROUBLED, tmp_path_factory.mktemp("troubled")) as run:
        report = {name: run.hear(name) for name in names}
        report |= {"tmp": run.tmp, "stderr": run.err, "hung": True}
        with contextlib.suppress(AssertionError):
            run.hear("collected", 10)
            report["hung"] = False
        if not report["hung"]:
            later = ("after all", "crash", "later", "restarted")
            report |= {name: run.hear(name) for name in later}
            report["end"] = ended(run)
        yield report


def test_start_that_sglang_refuses_raises_ours_with_the_cause(troubled):
    for place in ("in the child", "in the parent", "beside the child"):
        ours, message = troubled[place]
        assert ours and "nonsense" in message.lower(), place
    _, message = troubled["in the child"]
    assert "scheduler 0" in message and "exit code 1" in message
    assert re.search(rf"{troubled['tmp']}/inf-engine-\w+/engine\.log", message)


@pytest.mark.parametrize(
    ("moment", "process"), [("killed importing", "fork server"), ("killed", "scheduler 0")]
)
def test_process_killed_while_it_starts_is_an_engine_dead_error(troubled, moment, process):
    ours, message = troubled[moment]
    assert ours
    assert re.search(rf"while it started: {process} \(pid \d+, exit code -9\)", message)


def test_failed_starts_leave_no_child_print_nothing_and_touch_no_other_process(troubled):
    assert (troubled["children"], troubled["stranger"], troubled["stderr"]) == ([], None, "")


def test_garbage_of_failed_starts_can_be_collected_and_the_next_start_works(troubled, answer):
    assert not troubled["hung"]  # a ZeroMQ context waits for ever for its unsent messages
    assert troubled["after all"] == answer


def test_scheduler_that_raises_is_an_engine_dead_error_with_its_traceback_until_a_restart(
    troubled, answer
):
    log = str(troubled["tmp"])
    for said in ("scheduler 0", "exit code 1", "IndexError", log):
        assert said in troubled["crash"]
    assert troubled["later"] == troubled["crash"]
    assert troubled["restarted"] == answer


def test_unhandled_exception_shows_itself_and_leaves_no_child(troubled):
    end = troubled["end"]
    assert end.exit_code == 1
    assert end.err.endswith("RuntimeError: an unhandled one\n")
    assert end.err.count("Traceback") == 1
    assert end.survivors == []
