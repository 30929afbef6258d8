"""A child of the caller's process: forked, or spawned. It is told at once what to do; a daemon too:
`tests/runtime/test_fork_server.py`.

One script has an engine and forks in all the ways that its users do; another one spawns.
"""

import re

import pytest

from tests.support.scripts import QUESTION, ended, script

pytestmark = [pytest.mark.slow, pytest.mark.verl]  # two scripts that start engines and forks

FORKS = """
import asyncio, contextlib, gc, multiprocessing, os, pickle, signal, sys, tempfile, time, warnings
import datasets, torch
warnings.simplefilter("ignore")
datasets.disable_progress_bars()
datasets.logging.set_verbosity_error()

def raw():
    from _inf.backends.verl.backend import data_proto
    from _inf.types import Request, SamplingParams

    return data_proto([Request([1, 2], SamplingParams(max_tokens=1))], e._backend.model)

async def first(chunks):
    return [chunk async for chunk in chunks]

CALLS = {
    "generate": lambda: e.generate(**QUESTION),
    "agenerate": lambda: asyncio.run(e.agenerate(**QUESTION)),
    "stream": lambda: next(e.stream("Hi")),
    "astream": lambda: asyncio.run(first(e.astream("Hi"))),
    "get_logprobs": lambda: e.get_logprobs("Hi", " there"),
    "rollout_batch": lambda: e.rollout_batch("Hi"),
    "update_weights": lambda: e.update_weights({"x": large}),
    "sleep": lambda: e.sleep(),
    "wake_up": lambda: e.wake_up(),
    "restart": lambda: e.restart(),
    "rollout.generate_sequences": lambda: e.rollout.generate_sequences(raw()),
    "a new engine": lambda: engine(),
    "shutdown": lambda: [e.shutdown(), e.__exit__()],
    "stats": lambda: e.stats(),
}

def told(call):
    try:
        call()
    except BaseException as failure:
        return [type(failure).__name__, str(failure)]

def forked(work, seconds=20):
    # What `work` gives in a fork of this process, and "hung" where it does not end.
    ours, theirs = multiprocessing.Pipe(duplex=False)
    if (pid := os.fork()) == 0:
        theirs.send(work())
        os._exit(0)
    answered = ours.poll(seconds)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return ours.recv() if answered else "hung"

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return e.generate(**QUESTION).token_ids

def in_pool():
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(ask)

def ask(row=None):
    return {"answer": e.generate(**QUESTION).token_ids}

e = engine()
asyncio.run(e.agenerate(**QUESTION))  # its pool has a thread now, which a fork lacks
large = torch.randn(1_000_000)
torch.isfinite(large).all()  # and OpenMP has its own
with contextlib.ExitStack() as stack:
    stack.enter_context(e)
    if (pid := os.fork()) == 0:
        sys.exit(0)
    stack.pop_all()  # the parent goes on with it
say("exit", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
say("pid", os.getpid())
say("forks", {name: forked(lambda: told(call)) for name, call in CALLS.items()})
say("pool", told(in_pool))
say("loader", told(lambda: list(torch.utils.data.DataLoader(Rows(), num_workers=1))))
gc.collect()  # its iterator, which complains of every later fork that ends
rows = datasets.Dataset.from_dict({"x": [1, 2]})
say("map", told(lambda: rows.map(ask, num_proc=2)))
say("pickle", told(lambda: pickle.dumps(e)))
say("answer", e.generate(**QUESTION).token_ids)
"""
SAID = ("exit", "pid", "forks", "pool", "loader", "map", "pickle", "answer")


@pytest.fixture(scope="module")
def forks(tmp_path_factory):
    """What a script with an engine heard in its forks, and how it ended."""
    folder = tmp_path_factory.mktemp("forks") / "spaces, 100% #1? é"
    with script(FORKS, folder, stdin=True) as run:
        report = {name: run.hear(name) for name in SAID}
        yield report | {"ended": ended(run)}


CALLS = """generate agenerate stream astream get_logprobs rollout_batch update_weights sleep wake_up
restart rollout.generate_sequences""".split()


def test_each_call_in_a_fork_says_at_once_which_process_has_the_engine(forks):
    for call in CALLS:
        kind, message = forks["forks"][call]
        here, home = re.findall(r"process (\d+)", message)[:2]
        assert kind == "InferenceError" and '"spawn"' in message, call
        assert int(home) == forks["pid"] != int(here), call
    for way in ("pool", "loader", "map"):  # workers forked by libraries
        kind, message = forks[way]
        assert kind == "InferenceError" and f"a fork of process {forks['pid']}" in message, way
    kind, message = forks["pickle"]
    assert kind == "InferenceError" and "another process" in message


def test_shutdown_stats_and_exit_in_a_fork_do_no_harm(forks, tiny):
    assert forks["forks"]["shutdown"] is None and forks["forks"]["stats"] is None
    assert forks["exit"] == 0  # of a fork that leaves inside `with`
    assert forks["answer"] == tiny.generate(**QUESTION).token_ids


def test_script_on_stdin_without_shutdown_ends_well_in_silence_and_leaves_nothing(forks):
    end = forks["ended"]
    assert (end.exit_code, end.err) == (0, "")
    assert end.out.count("\n") == len(SAID)  # what it says itself, and nothing else
    assert end.family >= 2  # a scheduler and the resource tracker
    assert end.survivors == [] and end.temporary == []


SPAWNS = """
import concurrent.futures, multiprocessing, os

def ask():
    with engine() as e:
        return [os.getpid(), e.generate(**QUESTION).token_ids]

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as executor:
        say("executor", executor.submit(ask).result())
    say("pid", os.getpid())
"""


@pytest.fixture(scope="module")
def spawns(tmp_path_factory):
    """What the worker of an executor, which is spawned, got."""
    with script(SPAWNS, tmp_path_factory.mktemp("spawns")) as run:
        report = {name: run.hear(name) for name in ("executor", "pid")}
        yield report | {"ended": ended(run)}


def test_engine_in_a_worker_of_the_advised_executor_answers(spawns, tiny):
    pid, answer = spawns["executor"]
    assert pid != spawns["pid"]
    assert answer == tiny.generate(**QUESTION).token_ids
    assert (spawns["ended"].exit_code, spawns["ended"].err) == (0, "")
    assert spawns["ended"].temporary == []
