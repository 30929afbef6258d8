"""Agent loops as users of verl write them, on the real engines: verl's own, right ones and wrong
ones (`tests/support/agent_loops.py`). An engine that dies under them: `faults/test_death.py`."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from _inf.config import load_config
from _inf.conversation.agent_loops.loading import KnownLoops
from inf import ConfigError, GenerationTimeout, PromptError
from tests.support import agent_loops as loops
from tests.support.agent_loop_guessing import GuessingLoop
from tests.support.engines import started
from tests.support.prompts import as_ids
from tests.support.reference import assert_same_rows
from tests.support.refusals import refused
from tests.support.scripts import until
from tests.support.tool_calling import GREETED, GREETING, TOOL_MODEL, answer, question

pytestmark = pytest.mark.verl

ROOT = Path(__file__).parents[3]
PROMPTS = ["One", "Two two", "Three three three", "Four"]
GREEDY = {"temperature": 0, "max_tokens": 12}
SAMPLED = {"temperature": 1.0, "seed": 3, "n": 2, "max_tokens": 12}


# ─── The same on every backend ───


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_verls_single_turn_gives_the_rows_of_generate(backend, params):
    plain = backend.generate(PROMPTS, **params)
    looped = backend.generate(PROMPTS, agent_loop="single_turn_agent", **params)
    assert_same_rows(looped, plain, within=1e-4)
    for one, other in zip(looped, plain, strict=True):
        about = one.metadata
        assert one.prompt_token_ids == other.prompt_token_ids
        for name in ("prompt_index", "sample_index"):
            assert about[name] == other.metadata[name]
        assert (about["agent_loop"], about["unsampled_ids"]) == ("single_turn_agent", 0)


def test_exact_loop_of_two_turns_is_found_exact(backend):
    for row in backend.generate(PROMPTS, agent_loop=loops.Exact, **GREEDY):
        ids, mask, logprobs = row.response
        about = row.metadata
        assert about["unsampled_ids"] == 0 and "unsampled_at" not in about
        assert (about["agent_loop"], about["num_turns"], row.messages) == ("exact", 4, None)
        assert about["response_mask"][: len(mask)] == mask
        assert row.token_ids == [i for i, bit in zip(ids, mask, strict=True) if bit]
        text = backend.tokenizer.decode(ids)
        said = f"<|im_start|>user\n{loops.Loop.again}<|im_end|>\n<|im_start|>assistant"
        assert said in text and mask.index(0) == 12
        last = len(mask) - mask[::-1].index(0)
        [again] = backend.generate(as_ids([row.prompt_token_ids + ids[:last]]), **GREEDY)
        assert again.token_ids == ids[last:]
        assert again.logprobs == pytest.approx(logprobs[last:], abs=1e-3)


def test_one_call_has_several_loops_and_each_row_its_columns(backend):
    named = {"_target_": "tests.support.agent_loops.Columns", "name": "counter", "limit": 7}
    output = backend.generate(
        PROMPTS[:2],
        agent_loop=[named, loops.Exact],
        agent_kwargs=[{"index": 5, "extra_info": {"x": 1}}, None],
        n=2,
        temperature=0.5,
        max_tokens=8,
    )
    assert [row.metadata["agent_loop"] for row in output] == ["counter"] * 2 + ["exact"] * 2
    first = output[1]
    fields = first.metadata["extra_fields"]
    assert fields["columns"] == {"index": 5, "extra_info": {"x": 1}}
    assert fields["own"] == {"name": "counter", "limit": 7}
    assert fields["params"]["temperature"] == 0.5 and fields["params"]["logprobs"] is True
    assert first.metadata["reward_scores"] == {"reward_score": 0.5}


# ─── What is not sampled is found ───


def test_loop_whose_ids_were_not_sampled_is_named_and_makes_no_batch(tiny):
    """The first place, and ids that lost their mask: `tests/conversation/test_recorder.py`."""
    says = "agent loop Invents: in 4 of 4 .*was not sampled there"
    with pytest.warns(UserWarning, match=says), refused(ConfigError, "no log probs, and ids that"):
        tiny.rollout_batch(PROMPTS, agent_loop=loops.Invents, **GREEDY)


# ─── A trainer's batch ───


def test_rollout_batch_has_the_loops_rows(tiny):
    call = {"agent_loop": loops.Columns, "agent_kwargs": {"index": 1}, **SAMPLED}
    batch, output = tiny.rollout_batch(PROMPTS, **call), tiny.generate(PROMPTS, **call)
    columns = batch.non_tensor_batch
    assert batch.batch["responses"].tolist() == [row["response_ids"] for row in output.metadata]
    assert columns["reward_scores"].tolist() == [{"reward_score": 0.5}] * 8
    assert "messages" not in columns
    assert columns["extra_fields"][0]["columns"] == {"index": 1}


# ─── A loop's faults are its row's ───


WRONG = {
    "raises": r"ValueError: the game is over \(agent_loops.py, line \d+\)",
    "exits": r"SystemExit: 3 \(agent_loops.py, line \d+\)",
    "cancels": "the agent loop cancelled its own task",
    "none": "run.. returned None; return verl's AgentLoopOutput",
    "mask": "response_mask: 1 values for 2 response_ids",
    "twos": "response_mask: its values must be 0 and 1",
    "long": "response_ids: 9999 ids are above 128.*rollout.response_length",
    "odd ids": "response_ids has -1, outside the model's vocabulary",
    "image": "multi_modal_data: agent loops take text only",
    "asks with an image": "image_data: agent loops take text only",
    "asks for nothing": "prompt_ids is empty",
    "asks for too much": "99999 tokens; within the limit of .* leaves no room",
    "asks for two": "sampling_params.n: a request of an agent loop cannot have it",
    "asks with an unknown parameter": "sampling_params.temprature: .* did you mean 'temperature'",
}


@pytest.mark.parametrize("how", WRONG)
def test_row_of_a_loop_that_fails_is_aborted_alone(how, hf):
    rows = [{"how": how}, {}]
    says = f"rows: 1 of 2 failed; the first is row 0 \\(agent loop Wrong\\): .*{WRONG[how]}"
    with pytest.warns(UserWarning, match=f"(?s){says}"):
        output = hf.generate(PROMPTS[:2], agent_loop=loops.Wrong, agent_kwargs=rows, **GREEDY)
    failed, right = output
    assert re.search(WRONG[how], failed.metadata["error"]), failed.metadata["error"]
    assert failed.finish_reason == "abort" and failed.token_ids == []
    assert failed.prompt_token_ids  # so that a batch of it has a prompt
    assert "error" not in right.metadata and right.completion_tokens > 0


def test_sampling_parameters_of_a_request_may_be_the_loops_own(tiny):
    def answered(**params: Any) -> list[int]:
        keywords = {"agent_kwargs": {"params": params}, "temperature": 0, "max_tokens": 9}
        return tiny.generate("One", agent_loop=loops.Sampling, **keywords).token_ids[0]

    whole = tiny.generate("One", temperature=0, max_tokens=9).token_ids[0]
    assert answered() == whole and len(whole) == 9
    texts = {"skip_special_tokens": False, "no_stop_trim": True, "include_stop_str_in_output": True}
    assert answered(n=1, **texts) == whole
    assert answered(max_new_tokens=3) == answered(max_tokens=3) == whole[:3]
    assert answered(stop_token_ids=[whole[4]]) == whole[: whole.index(whole[4]) + 1]
    banned = answered(logit_bias={whole[0]: -100})
    assert banned[0] != whole[0]


# ─── Threads, time and cancellation ───


def test_loop_that_blocks_its_thread_does_not_block_the_engine(tiny):
    with ThreadPoolExecutor() as threads:
        call = {"agent_loop": loops.Blocks, "timeout": 60, **GREEDY}
        blocked = threads.submit(tiny.generate, PROMPTS[0], **call)
        assert loops.Blocks.begun.wait(30)
        assert tiny.generate("Two", temperature=0, max_tokens=2).token_ids
        loops.Blocks.goes_on.set()
        assert len(blocked.result(60)) == 1


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
def test_timeout_and_cancelling_cancel_loops_that_catch_everything(tiny, how):
    rows = {"agent_loop": loops.CatchesAll, "agent_kwargs": [{"index": 1}, {"index": 2}]}
    loops.CatchesAll.cancelled.clear()
    loops.CatchesAll.begun.clear()

    async def begin_and_cancel() -> None:
        call = asyncio.ensure_future(tiny.agenerate(PROMPTS[:2], **rows, **GREEDY))
        assert await asyncio.to_thread(until, lambda: len(loops.CatchesAll.begun) == 2, 30)
        call.cancel()

    if how == "cancelled":
        asyncio.run(begin_and_cancel())
    else:
        with pytest.raises(GenerationTimeout):
            tiny.generate(PROMPTS[:2], timeout=1, **rows, **GREEDY)
    assert until(lambda: sorted(loops.CatchesAll.cancelled) == [1, 2], 30)
    assert tiny.generate("One", **GREEDY).token_ids  # nothing is in its way


def test_loop_that_ends_its_event_loop_does_not_hold_up_itself_or_others(tiny):
    """The other one checks that its server manager is verl's."""
    two = [loops.LeavesExit, loops.GivesItsClient]
    output = tiny.generate(PROMPTS[:2], agent_loop=two, timeout=30, **GREEDY)
    assert output.token_ids == tiny.generate(PROMPTS[:2], **GREEDY).token_ids


def test_request_that_a_loop_leaves_behind_ends_with_its_row(tiny):
    loops.Late.left.clear()
    tiny.generate(PROMPTS[:2], agent_loop=loops.Late, temperature=0, max_tokens=128)
    assert until(lambda: all(each.done() for each in loops.Late.left), 30)
    assert len(loops.Late.left) == 2
    assert all(each.cancelled() or each.exception() for each in loops.Late.left)


# ─── Names, files and refusals ───


def test_call_that_cannot_run_its_loop_is_refused_before_anything_is_sent(hf):
    def says(sentence: str, key: str = "agent_loop", **call: Any) -> None:
        with refused(ConfigError, sentence, key=key):
            hf.generate("One", **call)

    exact = {"agent_loop": loops.Exact}
    before = hf.stats()["requests"]
    says(
        "no agent loop has the name 'tool_agnt'; did you mean 'tool_agent'", agent_loop="tool_agnt"
    )
    says("is not a subclass of verl's AgentLoopBase", agent_loop=dict)
    says("os.path has no nope", agent_loop={"_target_": "os.path.nope"})
    says("cannot be made: TypeError", agent_loop=loops.NeedsMore)
    says("cannot be made: SystemExit: 4", agent_loop=loops.Exits, timeout=30)
    target = {"_target_": "tests.support.agent_loops.Columns", "limit": object()}
    says("Value 'object' is not .*; its values must be of types that a YAML", agent_loop=target)
    says("no agent loop runs", key="agent_kwargs", agent_kwargs={"index": 1})
    says("cannot be used with agent_loop", key="regex", regex="a", **exact)
    says("has its own", key="tools", tools=[loops.add], **exact)
    with refused(PromptError, "agent loops render messages", index=0):
        hf.generate({"prompt_token_ids": [5, 6]}, **exact)
    with refused(ConfigError, "prompt 1 has none", key="agent_loop"):
        hf.generate(["One", "Two"], agent_loop=[loops.Exact, None])
    with refused(ConfigError, r"stream\(\) runs no agent loop", key="agent_loop"):
        hf.stream("One", **exact)
    assert hf.stats()["requests"] == before


def test_generate_inside_a_loop_is_refused_where_it_would_wait_for_itself(hf, monkeypatch):
    monkeypatch.setattr(loops.Calls, "engine", hf, raising=False)
    with pytest.warns(UserWarning, match="rows: 1 of 1 failed"):
        [row] = hf.generate("One", agent_loop=loops.Calls, timeout=60, **GREEDY)
    assert "await agenerate() there" in row.metadata["error"]
    whole = hf.generate("One", agent_loop=loops.Exact, **GREEDY).token_ids
    [awaits] = hf.generate("One", agent_loop=loops.Awaits, timeout=60, **GREEDY)
    assert awaits.metadata["extra_fields"]["inner"] == whole


FILE = """
- name: mine
  _target_: my_loops.Mine
  limit: 7
  nested:
    deep: [1, 2]
"""
MODULE = """
from tests.support.agent_loops import Columns

class Mine(Columns):
    def __init__(self, *args, nested, **kwargs):
        super().__init__(*args, **kwargs)
        self.own = self.own | {"deep": list(nested.deep)}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a module, which is imported once."""
    folder = tmp_path_factory.mktemp("loops")
    (folder / "my_loops.py").write_text(MODULE)
    return folder


def config_of_file(folder: Path, text: str, **agent: Any) -> dict[str, Any]:
    path = folder / "loops.yaml"
    path.write_text(text)
    return {"name": "hf", "agent": {"agent_loop_config_path": str(path), **agent}}


def loop_threads() -> int:
    return sum(thread.name == "inf-agent-loops" for thread in threading.enumerate())


def test_default_loop_of_a_config_runs_unless_a_call_has_tools(folder):
    before, rollout = loop_threads(), config_of_file(folder, FILE, default_agent_loop="mine")
    with started(**rollout) as engine:
        [row] = engine.generate("One", agent_kwargs={"index": 2}, **GREEDY)
        assert row.metadata["agent_loop"] == "mine"
        own = row.metadata["extra_fields"]["own"]
        assert own == {"name": "mine", "limit": 7, "deep": [1, 2]}
        other = engine.generate("One", agent_loop="exact", **GREEDY)[0]
        assert other.metadata["agent_loop"] == "exact"
        assert "agent_loop" not in engine.generate("One", tools=[], **GREEDY)[0].metadata
        with refused(ConfigError, r"pass tools=\[\]", key="agent_loop"):
            engine.stream("One")
        assert loop_threads() == before + 1
        seen = weakref.ref(engine)
    assert until(lambda: loop_threads() == before, 30)
    del engine
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "it must be a list of agent loops"),
        ("- [", "cannot be read"),
        ("- name: a", "entry 0: it must have a name and a _target_"),
        (FILE + FILE, "entry 1: an earlier entry has the name 'mine'"),
        ("- {name: single_turn_agent, _target_: a.B}", "is verl's own loop"),
        (
            "- {name: a, _target_: my_loops.Mein}",
            "has no Mein; did you mean 'Mine'",
        ),
        (
            "- {name: a, _target_: my_loops.Mine, tokenizer: x}",
            "tokenizer cannot be",
        ),
        ("- {name: '${oc.env:NO_SUCH}', _target_: a.B}", "entry 0: .*'NO_SUCH' not found"),
        ("- {name: a, _target_: nowhere.Mine}", "nowhere cannot be imported"),
        (FILE, "did you mean 'mine'"),
    ],
)
def test_file_of_loops_is_refused_by_its_entry(text, says, folder):
    default = {"default_agent_loop": "mien"} if text == FILE else {}
    config = load_config({"rollout": config_of_file(folder, text, **default)}, {})
    key = "default_agent_loop" if default else "agent_loop_config_path"
    with refused(ConfigError, says, key=f"rollout.agent.{key}"):
        KnownLoops(config)


# ─── verl's own loop with tools ───


@pytest.fixture(scope="module")
def callers():
    """Two engines on the model that calls tools; the second one's loop has other limits."""
    turns = {"enable": True, "tool_config_path": str(ROOT / "tools.yaml")}
    rollout = {"name": "hf", "do_sample": False, "prompt_length": 1024, "multi_turn": turns}
    engines = [started(TOOL_MODEL, **rollout, response_length=length) for length in (512, 24)]
    yield engines
    for engine in engines:
        engine.shutdown()


def test_verls_tool_loop_runs_the_configs_tools_and_renders_as_it_does_in_a_trainer(callers):
    """verl 0.6.1 cuts a system prompt that this template does not have off each later message, and
    with it the `<|im_start|>user` of a tool's result (docs/agent_loops.md)."""
    prompts, engine = [question("12 * 7"), GREETING], callers[0]
    ours, verls = engine.generate(prompts), engine.generate(prompts, agent_loop="tool_agent")
    assert ours[0].completion == answer("84") != verls[0].completion
    assert verls[1].completion == ours[1].completion == GREETED
    assert verls[1].response[:2] == ours[1].response[:2]
    one, other = (engine.tokenizer.decode(row.response[0]) for row in (ours[0], verls[0]))
    assert "<|im_start|>user\n<tool_response>\n84" in one and "<tool_response>" not in other
    about = verls[0].metadata
    assert about["unsampled_ids"] == 0 and about["num_turns"] == 4
    assert about["extra_fields"] == {"turn_scores": [], "tool_rewards": [0.0]}


def test_two_engines_do_not_share_a_loops_limits_and_nothing_is_on_stdout(callers, capfd):
    callers[1].generate(GREETING, agent_loop=loops.WithTools)
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("my own class")
    asked = {"prompts": question("12 * 7"), "agent_loop": "tool_agent"}
    lengths = [len(engine.generate(**asked)[0].response[0]) for engine in callers]
    assert lengths[0] > 24 >= lengths[1]


def test_unchanged_loop_gives_the_greedy_ids_that_it_gives_under_verl_0_9_1(callers):
    """What they are there: `tests/soak/test_verl09.py`, which holds the record against the real
    one."""
    record = json.loads((ROOT / "tests/verl09/greedy_rows.json").read_text())
    named = {"guessing_agent": GuessingLoop, "single_turn_agent": "single_turn_agent"}
    rows = [row for row in record if row["loop"] in named]
    output = callers[0].generate(
        [row["prompt"] for row in rows],
        agent_loop=[named[row["loop"]] for row in rows],
        agent_kwargs=[{"number": row["answer"]} for row in rows],
    )
    assert {row["num_turns"] for row in rows} == {2, 4}
    for ours, theirs in zip(output, rows, strict=True):
        assert ours.prompt_token_ids == theirs["prompt_ids"]
        assert ours.response[:2] == (theirs["response_ids"], theirs["response_mask"])
        assert ours.metadata["unsampled_ids"] == 0
        if theirs["loop"] == "guessing_agent":
            assert ours.metadata["reward_scores"] == {"reward_score": theirs["reward"]}
            assert ours.metadata["num_turns"] == theirs["num_turns"]
