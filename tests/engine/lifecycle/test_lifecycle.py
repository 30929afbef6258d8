"""The lifecycle of an engine: what it leaves alone, and what remains when it or its caller ends.

Code that changes the interpreter, gets a signal or ends is a separate script, run once per module;
each test checks one claim in its output. Other ways in which a caller ends are tested elsewhere:
a fork (`test_forks.py`), `sys.exit` (`test_abort.py`), an exception (`test_death.py`) and `kill -9`
(`test_batch.py`).
"""

import ipaddress
import re
import signal

import pytest

from tests.support.scripts import ended, script

pytestmark = pytest.mark.slow  # a script that starts and stops engines in many ways
# ─── A life ───

LIFE = """
import asyncio, concurrent.futures, gc, logging, multiprocessing, os, signal, subprocess, tempfile
import threading, time
import psutil

def mine(*args):
    pass

class Policy(asyncio.DefaultEventLoopPolicy):
    pass

def interpreter():
    return {
        **{name: signal.getsignal(getattr(signal, name)) for name in SIGNALS},
        "signal mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "root logger": (list(logging.root.handlers), logging.root.level),
        "event loop policy": asyncio.get_event_loop_policy(),
        "start method": multiprocessing.get_start_method(allow_none=True),
        "threading._register_atexit": threading._register_atexit,
    }

def foreign():
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(300,))
    child.start()
    return [subprocess.Popen(["sleep", "300"]).pid, child.pid]

def temporary():
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("inf-engine-")]

def children():
    return [p for p in me.children(recursive=True) if p.pid not in strangers]

SIGNALS = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGCHLD")
for name in SIGNALS:
    signal.signal(getattr(signal, name), mine)
asyncio.set_event_loop_policy(Policy())
logging.basicConfig(format="mine %(message)s")
me, before, strangers = psutil.Process(), interpreter(), foreign()

a = engine()
strangers += foreign()
started, leave = threading.Event(), threading.Event()

async def elsewhere():
    with engine() as b:
        said.update(b=b, scheduler=psutil.Process(b.rollout.host.children[0].pid))
        said["answer"] = (await b.agenerate(**QUESTION)).token_ids
        started.set()
        await asyncio.to_thread(leave.wait)
        raise ZeroDivisionError

said = {}
thread = concurrent.futures.ThreadPoolExecutor(1)
future = thread.submit(lambda: asyncio.run(elsewhere()))
future.add_done_callback(lambda _: started.set())
started.wait()
say("two at once", [a.generate(**QUESTION).token_ids, said["answer"]])
after = interpreter()
say("changed", [name for name in before if before[name] != after[name]])
sockets = [c for p in [me, *children()] for c in p.net_connections("inet") if not c.raddr]
say("open to", sorted({c.laddr.ip for c in sockets}))
say("folders", len(temporary()))
leave.set()
say("raised", type(future.exception()).__name__)
say("its scheduler runs", said["scheduler"].is_running())  # no zombie either

def told(call):
    try:
        call()
    except Exception as failure:
        return [type(failure).__name__, str(failure)]

b = said.pop("b")
say("after shutdown", [
    [
        told(lambda: b.generate("Are you there?")),
        told(lambda: asyncio.run(b.agenerate("Are you there?"))),
        told(lambda: b.generate("")),
        told(b.shutdown),
    ]
    for _ in range(2)
])
say("the other one", a.generate(**QUESTION).token_ids)
del a
gc.collect()
say("children", [p.cmdline() for p in children()])
say("threads", [thread.name for thread in threading.enumerate()])
say("left folders", temporary())
say("strangers", [psutil.Process(pid).status() for pid in strangers])
for pid in strangers:
    os.kill(pid, signal.SIGKILL)
c = engine()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
say("a second life", c.generate(**QUESTION).token_ids)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """What a script saw of two engines at once and one more after them, until SIGTERM ended it.

    The second one is started in async code on a thread, and left by an exception.
    """
    names = ["two at once", "changed", "open to", "folders", "raised", "its scheduler runs"]
    names += ["after shutdown", "the other one", "children", "threads", "left folders"]
    names += ["strangers", "a second life"]
    with script(LIFE, tmp_path_factory.mktemp("life")) as run:
        report = {name: run.hear(name) for name in names}
        run.send(signal.SIGTERM)
        yield report | {"end": ended(run)}


def test_engines_side_by_side_and_after_each_other_answer_alike(life, answer):
    """Also in async code on a thread, and beside one that was shut down."""
    assert life["two at once"] == [answer, answer]
    assert life["the other one"] == life["a second life"] == answer


def test_signal_handlers_logging_event_loops_and_start_method_stay_the_callers(life):
    assert life["changed"] == []


def test_nothing_listens_beyond_loopback(life):
    assert all(ipaddress.ip_address(address).is_loopback for address in life["open to"])


def test_exception_inside_with_passes_and_leaves_no_child(life):
    assert life["raised"] == "ZeroDivisionError" and not life["its scheduler runs"]


def test_call_after_shutdown_says_so_in_a_sentence_unless_it_is_wrong(life):
    for *calls, (wrong, _), shutdown in life["after shutdown"]:
        assert wrong == "PromptError" and shutdown is None
        for kind, message in calls:
            assert kind == "EngineDeadError"
            assert re.fullmatch(r"[^\n]*was shut down; restart\(\)[^\n]*\.", message)


def test_shutdown_twice_and_garbage_collection_leave_nothing_of_ours_and_all_of_others(life):
    # Multiprocessing's resource tracker is the interpreter's, and ends with it.
    ours = [line for line in life["children"] if "resource_tracker" not in " ".join(line)]
    assert ours == []
    assert [name for name in life["threads"] if name.startswith("inf-engine")] == []
    assert life["folders"] == 2 and life["left folders"] == []
    assert life["strangers"] == ["sleeping"] * 4


def test_sigterm_ends_the_caller_and_its_children_and_nothing_was_printed(life):
    end = life["end"]
    assert (end.exit_code, end.err) == (-signal.SIGTERM, "")
    assert end.family >= 2  # a scheduler and the resource tracker
    assert end.survivors == []
