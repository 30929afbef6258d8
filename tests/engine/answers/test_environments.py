"""Environments (TRL's contract) on the real engine, with a model that really calls."""

from __future__ import annotations

import gc
import pickle
import re
import threading
from typing import Any

import pytest

from _inf.config import load_config
from inf import (
    ConfigError,
    EngineDeadError,
    GenerationRow,
    InferenceEngine,
    PromptError,
    ToolError,
    load_rollouts,
    save_rollouts,
)
from tests.support import environments as kinds
from tests.support.engines import connected
from tests.support.refusals import refused
from tests.support.running import begun
from tests.support.scripts import until
from tests.support.tool_calling import FAILED, GREETED, GREETING, TOOL_MODEL, answer, question

PRODUCT, BOTH = question("12 * 7"), question("12 * 7", "3 + 4")


def test_methods_are_the_tools_and_the_reward_is_the_environments(caller):
    """As `docs/environments.md` shows, in a trainer's batch too (`commands/test_pages.py`)."""
    columns = [{"shows": " 12 * 7?"}, {}, {}]
    output = caller.generate(
        ["What is", BOTH, GREETING], environment_factory=kinds.Sums, environment_kwargs=columns
    )
    assert output.completions == [answer("84"), answer("84", "7"), GREETED]
    assert [row.metadata["reward_scores"]["environment"] for row in output] == [1.0, 2.0, 0.0]
    assert [row.metadata["tool_rewards"] for row in output] == [{}] * 3
    # The same ids as with the method alone, and the whole question in the prompt.
    plain = caller.generate([PRODUCT], tools=[kinds.Sums().calculator])
    assert output[0].response[:2] == plain[0].response[:2]
    assert output[0].prompt_token_ids == plain[0].prompt_token_ids


def own_threads_end(seconds: float = 20) -> bool:
    return until(lambda: "inf-tool" not in [each.name for each in threading.enumerate()], seconds)


def with_tool_timeout(engine: InferenceEngine, patch: pytest.MonkeyPatch, seconds: float) -> None:
    config = load_config(engine.config.to_dict(), {"tool_timeout": seconds})
    patch.setattr(engine, "config", config)


def test_methods_run_on_one_thread_which_ends_with_its_row_and_properties_are_not_read(caller):
    [row] = caller.generate(BOTH, environment_factory=kinds.Table)
    assert row.completion == answer("84", "7")
    assert row.metadata["reward_scores"]["environment"] == 2.0
    assert own_threads_end()
    for kind in (kinds.OfClass, kinds.Static):
        assert caller.generate(PRODUCT, environment_factory=kind).completions == [answer("84")]


def test_each_row_has_an_environment_of_its_own(caller):
    before = kinds.Counter.made
    output = caller.generate(
        [PRODUCT, BOTH], environment_factory=kinds.Counter, n=3, temperature=0.01, seed=1
    )
    said = [[call["result"] for call in row.metadata["tool_calls"]] for row in output]
    assert said == [["11"]] * 3 + [["11", "12"]] * 3
    assert kinds.Counter.made == before + 1 + 6  # one for the tools' schemas
    assert "environment" not in output.metadata[0]["reward_scores"]


def cut_between_turns(caller: InferenceEngine, **columns: Any) -> GenerationRow:
    """A row that `pause` ends while its environment calculates."""
    asked = {"environment_factory": kinds.WaitingSums, "environment_kwargs": columns}
    kinds.WaitingSums.entered.clear()
    kinds.WaitingSums.goes_on.clear()
    call = begun(lambda: caller.generate(BOTH, temperature=0, **asked))
    assert kinds.WaitingSums.entered.wait(30)
    ending = begun(lambda: caller.pause("abort"))
    assert until(lambda: caller.paused, 30)
    kinds.WaitingSums.goes_on.set()
    ending.result(30)
    caller.resume()
    [row] = call.result(30)
    return row


def test_environment_goes_on_with_the_row_that_is_continued(caller, tmp_path):
    asked = {"environment_factory": kinds.WaitingSums, "temperature": 0}
    kinds.WaitingSums.goes_on.set()
    [expected] = caller.generate(BOTH, **asked)
    row = cut_between_turns(caller)
    assert row.finish_reason == "abort" and "environment" not in row.metadata["reward_scores"]
    save_rollouts([row], tmp_path / "row.jsonl", caller.tokenizer)
    with refused(PromptError, "without its environment"):
        caller.generate(load_rollouts(tmp_path / "row.jsonl")[0], **asked)
    with refused(PromptError, "without its environment"):
        caller.generate(pickle.loads(pickle.dumps(row)), **asked)
    with refused(PromptError, "pass the environment_factory"):
        caller.generate(row)
    with pytest.warns(UserWarning, match="own environment has no count"):
        [other] = caller.generate(cut_between_turns(caller), environment_factory=kinds.CountingSums)
    assert other.finish_reason == "abort"
    made = kinds.WaitingSums.made
    [later] = caller.generate(row, **asked)
    assert kinds.WaitingSums.made == made + 1  # one for the tools' schemas
    assert later.response[:2] == expected.response[:2] and later.messages == expected.messages
    assert later.metadata["reward_scores"] == expected.metadata["reward_scores"]
    assert later.prompt_token_ids == expected.prompt_token_ids
    with refused(PromptError, "without its environment"):
        caller.generate(row, **asked)
    assert own_threads_end()
    row = cut_between_turns(caller)
    assert not own_threads_end(0.1)
    del row
    gc.collect()
    assert own_threads_end()


def test_call_that_was_given_up_before_it_began_is_not_made_later(caller, monkeypatch):
    """The thread is still in the call before it."""
    with_tool_timeout(caller, monkeypatch, 0.5)
    kinds.WaitingSums.goes_on.clear()
    made: list[kinds.WaitingSums] = []
    [row] = caller.generate(
        BOTH, environment_factory=lambda: made.append(kinds.WaitingSums()) or made[-1]
    )
    said = [call["error"] for call in row.metadata["tool_calls"]]
    assert said == ["it did not answer within 0.5 seconds"] * 2
    kinds.WaitingSums.goes_on.set()
    assert own_threads_end() and made[-1].calls == ["12 * 7"]


@pytest.mark.parametrize(
    ("content", "shows"), [("hi", "go<|im_end|>user"), ("hi<|im", "_end|><|im_end|>user")]
)
def test_what_reset_returns_cannot_end_the_turn_that_it_is_put_into(caller, content, shows):
    """Two rows of one prompt, which share no values of its columns."""
    columns = {"shows": [shows], "lock": threading.Lock()}
    how = {"n": 2, "temperature": 1.0, "max_tokens": 4}
    [plain] = caller.generate("hi", tools=[], max_tokens=4)
    special = caller.tokenizer.all_special_ids
    for row in caller.generate(
        content, environment_factory=kinds.Shows, environment_kwargs=columns, **how
    ):
        ids = row.prompt_token_ids
        assert [i for i in ids if i in special] == [
            i for i in plain.prompt_token_ids if i in special
        ]
        assert row.error is None and "hi" in caller.tokenizer.decode(ids)


def test_calls_of_a_turn_run_one_after_the_other(caller):
    [row] = caller.generate(BOTH, environment_factory=kinds.AsyncSums)
    assert len(row.metadata["tool_calls"]) == 2
    assert row.metadata["reward_scores"]["environment"] == 1.0  # the most at once


def test_reset_gets_the_row_with_its_prompt(caller):
    made: list[kinds.Sums] = []

    def factory() -> kinds.Sums:
        made.append(kinds.Sums())
        return made[-1]

    columns = {"index": 3, "environment": "sums"}
    row = {"prompt": [{"role": "user", "content": PRODUCT}], "index": 3}
    # The choice among several is not the row's.
    for factories, expected in ((factory, {**row, **columns}), ({"sums": factory}, row)):
        caller.generate(PRODUCT, environment_factory=factories, environment_kwargs=columns)
        assert made[-1].row == expected


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("raises", "ValueError: no such game"),
        ("error of ours", "RuntimeError: EngineDeadError: the judge is gone"),
        ("hangs", "TimeoutError: no answer within 0.5 seconds"),
        ("number", r"reset\(\) returned 3; it must be a str or None"),
        ("long", r"the prompt has \d+ tokens; at most 1024 fit \(rollout.prompt_length\)"),
    ],
)
def test_environment_that_does_not_begin_ends_its_row_alone(how, error, caller, monkeypatch):
    with_tool_timeout(caller, monkeypatch, 0.5 if how == "hangs" else 20)
    rows = [{"how": how, "error": EngineDeadError("the judge is gone")}, {"how": "well"}]
    call = {"environment_factory": kinds.Wrong, "environment_kwargs": rows}
    with pytest.warns(UserWarning, match=f"1 of 2 failed; the first is row 0: .*{error}"):
        output = caller.generate([PRODUCT] * 2, **call)
    failed, right = output
    assert failed.finish_reason == "abort" and failed.token_ids == []
    assert re.search(error, failed.metadata["error"])
    assert right.completion == answer("84") and "error" not in right.metadata


@pytest.mark.parametrize(
    ("how", "completion", "error"),
    [
        ("tool raises", FAILED, None),
        ("reward raises", answer("84"), "get_reward: ValueError: no reward"),
        ("reward nan", answer("84"), "get_reward: .* not a finite number"),
    ],
)
def test_fault_after_the_beginning_keeps_the_row(how, completion, error, caller):
    [row] = caller.generate(
        PRODUCT, environment_factory=kinds.Wrong, environment_kwargs={"how": how}
    )
    assert row.completion == completion and row.finish_reason == "stop"
    said = row.metadata.get("error")
    assert said is None if error is None else re.match(error, said)
    assert ("environment" in row.metadata["reward_scores"]) == (error is None)


def test_call_that_cannot_have_its_environment_is_refused(caller, monkeypatch):
    with_tool_timeout(caller, monkeypatch, 1)
    hangs = threading.Event()
    name, columns = "environment_factory", "environment_kwargs"
    routed = {name: {"sums": kinds.Sums}}
    for call, says, key in (
        ({name: {"a": 3}}, "cannot be called", f"{name}.a"),
        ({name: kinds.WithoutReset}, "WithoutReset has no method reset", name),
        ({name: kinds.CannotBeMade}, "cannot be made: OSError: no display", name),
        ({name: lambda: hangs.wait(60)}, "cannot be made: .* no answer within 1 seconds", name),
        ({columns: {"a": 1}}, "no environment gets it", columns),
        (routed, "None of prompt 0 is not an env", f"{columns}.environment"),
        (
            {**routed, columns: {"environment": "sum"}},
            "did you mean 'sums'",
            f"{columns}.environment",
        ),
        ({name: kinds.Sums, "regex": "a"}, "leave environment_factory out", "regex"),
    ):
        with refused(ConfigError, says, key=key):
            caller.generate(PRODUCT, **call)
    for call, says in (
        ({name: kinds.Unhinted}, r"Unhinted.move\(\)"),
        ({name: kinds.Sums, "tools": [kinds.Sums().calculator]}, "'calculator' is taken by"),
    ):
        with refused(ToolError, says):
            caller.generate(PRODUCT, **call)
    with refused(ConfigError, "use generate", key=name):
        caller.stream(PRODUCT, environment_factory=kinds.Sums)
    hangs.set()


def test_environment_on_a_server_of_texts(caller):
    with caller.serve() as server:
        with connected(server.base_url, TOOL_MODEL) as remote:
            [row] = remote.generate(
                "What is",
                environment_factory=kinds.Sums,
                environment_kwargs={"shows": " 12 * 7?"},
                temperature=0,
            )
    assert row.completion == answer("84")
    assert row.metadata["reward_scores"]["environment"] == 1.0
