"""Two ranks of a tensor-parallel group stay in step whatever fails on one of them.

SGLang computes with several ranks on GPUs only, so here the first rank's engine computes alone; the
group, the calls of both ranks, verl's rollout and the engine are the real ones.
"""

import json

import pytest

from tests.support.scripts import START_SECONDS, two_ranks
from tests.support.tool_calling import TOOL_MODEL, question

pytestmark = [pytest.mark.slow, pytest.mark.verl]  # two processes, an engine

PROGRAM = """
import _thread, faulthandler, json, os, sys, threading, time
import psutil
import _inf.backends.verl.launch_sglang as launch
arguments = launch.server_arguments
launch.server_arguments = lambda *given: arguments(*given) | {"tp_size": 1}
from inf import InferenceEngine, InferenceError
from transformers import AutoModelForCausalLM
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

faulthandler.dump_traceback_later(%(seconds)d, exit=True)  # a rank that waits without end
model, rank, said = sys.argv[1], int(os.environ["RANK"]), {}
first, numbers = rank == 0, iter(range(100, 900))

def calculator(expression: str) -> str:
    '''The calculator.

    Args:
        expression: The expression.
    '''
    nested.append(engine.generate("Hello.", temperature=0, max_tokens=4).token_ids)
    return "84"

def says(name, work):
    try:
        said[name] = work()
    except InferenceError as failure:
        said[name] = [type(failure).__name__, str(failure)]
    except KeyboardInterrupt:
        said[name] = ["KeyboardInterrupt", ""]
    if name != "large weights":
        said["after " + name] = rows(next(numbers))  # each call has rows of its own

def failed(work):
    try:
        work()
    except InferenceError as failure:
        return [type(failure).__name__, str(failure)]

def rows(seed):
    drawn = {"seed": seed, "temperature": 9.0, "ignore_eos": True, "max_tokens": 8}
    return engine.generate("Hello.", n=2, **drawn).token_ids

def talk(**params):
    nested.clear()
    output = engine.generate(json.loads(sys.argv[3]), tools=[calculator], temperature=0, **params)
    return [output.token_ids, output.messages, len(nested) == (1 if first else 0)]

def weights(change=lambda state: None):
    state = AutoModelForCausalLM.from_pretrained(model).state_dict()
    change(state)
    return engine.update_weights(state)

def interrupted():
    if first:
        threading.Timer(0.5, _thread.interrupt_main).start()
    return engine.generate("long", max_tokens=3000, ignore_eos=True).token_ids

class ReturnsALock(AgentLoopBase):
    async def run(self, sampling_params, **kwargs):
        return AgentLoopOutput(prompt_ids=[5], response_ids=[], response_mask=[], metrics={},
                               extra_fields={"lock": threading.Lock()})

nested = []
rollout = {"dtype": "float32", "prompt_length": 512, "response_length": 128,
           "max_model_len": 3900, "enforce_eager": True, "free_cache_engine": True,
           "tensor_model_parallel_size": 2, "multi_turn": {"format": "hermes"}}
said["start"] = failed(lambda: InferenceEngine(
    model_path=model, rollout={**rollout, "load_format": "sharded_state"}))
with InferenceEngine(model_path=model, rollout=rollout) as engine:
    long = {"max_tokens": 3000, "ignore_eos": True}
    said["answer"] = rows(99)
    says("timeout", lambda: engine.generate("long", timeout=0.4, **long).token_ids)
    says("timeout of a conversation", lambda: talk(timeout=0.02))
    says("conversation", talk)
    says("lock", lambda: engine.generate("a", agent_loop=ReturnsALock).token_ids)
    says("interrupt", interrupted)
    says("stream", lambda: [c.token_ids for c in engine.stream("a", temperature=0, max_tokens=3)])
    says("score", lambda: len(engine.score("a", "b")))
    says("prompt", lambda: engine.generate({"prompt_token_ids": [10**6]}))
    engine.sleep()
    calls = {"generate": lambda: rows(7), "talk": talk, "weights": weights}
    for name, work in calls.items():
        said["asleep " + name] = failed(work)
    says("wake up", engine.wake_up)
    says("weights of one rank", lambda: weights(lambda s: None if first else s.popitem()))
    says("weights", lambda: weights(lambda s: s["lm_head.weight"].neg_()))
    says("large weights", lambda: weights(
        lambda s: [each.mul_(1e25) for name, each in s.items() if "_proj" in name]))
    said["nan"] = failed(lambda: rows(7))
    says("weights again", weights)
    if first:  # a call that the other rank does not make
        engine.generate("one more", max_tokens=2)
        said["another call"] = said["the same call"] = rows(5)
    else:
        said["another call"] = failed(lambda: rows(5))
        said["the same call"] = rows(5)
    if first:
        [child] = engine.rollout.host.children
        psutil.Process(child.pid).kill()
    for name, work in calls.items():
        said["dead " + name] = failed(work)
with open(sys.argv[2] + str(rank), "w") as file:
    json.dump(said, file)
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    program = PROGRAM % {"seconds": START_SECONDS}
    asked = str(TOOL_MODEL), "said", json.dumps(question("12 * 7"))
    return two_ranks(program, tmp_path_factory.mktemp("ranks"), *asked)


def test_after_each_failure_both_ranks_get_the_rows_of_their_next_call(ranks):
    first, second = ranks
    after = {name: rows for name, rows in first.items() if name.startswith("after ")}
    assert {name: second[name] for name in after} == after
    assert len({json.dumps(rows) for rows in after.values()}) == len(after) == 12


def test_error_of_the_first_rank_is_that_of_all(ranks):
    for said in ranks:
        assert said["timeout"][0] == "GenerationTimeout"
        assert said["timeout of a conversation"][0] == "GenerationTimeout"
        assert said["lock"][0] == "InferenceError" and "cannot pickle" in said["lock"][1]
        assert said["nan"][0] == "RequestFailure" and "nan" in said["nan"][1]
        for call in ("generate", "talk", "weights"):
            assert "asleep" in said[f"asleep {call}"][1]
            assert said[f"dead {call}"][0] == "EngineDeadError"
    assert ranks[0]["interrupt"][0] == "KeyboardInterrupt"
    assert ranks[1]["interrupt"][0] == "InferenceError"


def test_start_that_fails_on_the_first_rank_fails_on_all(ranks):
    assert ranks[0]["start"][0] == "EngineDeadError"
    assert "Another rank of this tensor-parallel group failed" in ranks[1]["start"][1]


def test_conversation_runs_once_also_where_its_tool_calls_the_engine(ranks):
    ids, [messages], once = ranks[0]["conversation"]
    assert "tool" in [message["role"] for message in messages] and once
    assert ranks[1]["conversation"] == [ids, [messages], True]


def test_weights_that_one_rank_cannot_load_are_loaded_by_none(ranks):
    for said in ranks:
        assert said["weights of one rank"][0] == "ConfigError"
        assert [said["weights"], said["large weights"], said["weights again"]] == [1, 2, 3]
        assert said["after weights"] != said["after wake up"]


def test_calls_of_the_first_rank_alone_are_refused_elsewhere(ranks):
    assert len(ranks[0]["stream"]) > 0 and ranks[0]["score"] == 1
    for call in ("stream", "score"):
        assert "not the first" in ranks[1][call][1]


def test_rank_in_another_call_is_told_so(ranks):
    assert "the same calls in the same order" in ranks[1]["another call"][1]
    assert ranks[1]["the same call"] == ranks[0]["the same call"]
