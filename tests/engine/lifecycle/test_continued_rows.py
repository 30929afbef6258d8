"""A row that `pause("abort")` has ended is continued by `generate` from its ids."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait

import pytest

from inf import (
    ConfigError,
    GenerationOutput,
    GenerationRow,
    InferenceEngine,
    PromptError,
    load_rollouts,
    save_rollouts,
)
from tests.support.prompts import as_ids, token_prompts
from tests.support.refusals import refused
from tests.support.running import begun, calculator_until_paused, under_way
from tests.support.tool_calling import calculator, question

PROMPTS = as_ids(token_prompts(3, longest=40, seed=51))
LONG = {"max_tokens": 200, "ignore_eos": True}
SAMPLINGS = {
    "greedy": {"temperature": 0, **LONG},
    "seeded": {"temperature": 1.0, "seed": 7, "top_p": 0.9, "top_k": 40, **LONG},
    "penalties": {
        **{"temperature": 1.0, "seed": 8, "min_tokens": 180, **LONG, "ignore_eos": False},
        **{"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    },
}


@pytest.fixture(autouse=True)
def _goes_on(tiny):
    yield
    tiny.resume()


def aborted(engine: InferenceEngine, ask: Callable[[], GenerationOutput]) -> GenerationOutput:
    """What `ask` returns whose rows are ended while they run, each with a token at least."""
    for attempt in range(1, 30):
        call = under_way(engine, ask)
        wait([call], 0.02 * attempt)
        engine.pause("abort")
        output = call.result(60)
        engine.resume()
        if all(row.finish_reason == "abort" and row.token_ids for row in output):
            return output
    pytest.fail("no call was ended while all of its rows ran")


def ended_at_its_tool(engine: InferenceEngine) -> GenerationRow:
    """A conversation that ends while its tool runs."""
    tool, entered = calculator_until_paused(engine)
    asked = {"tools": [tool], "max_tokens": 200, "temperature": 0}
    call = begun(lambda: engine.generate(question("12 * 7"), **asked))
    assert entered.wait(30)
    engine.pause("abort")
    [row] = call.result(30)
    engine.resume()
    return row


def assert_same(row: GenerationRow, expected: GenerationRow) -> None:
    assert row.token_ids == expected.token_ids and row.completion == expected.completion
    assert row.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
    for name in ("finish_reason", "matched_stop", "prompt_tokens", "completion_tokens", "seed"):
        assert row.metadata.get(name) == expected.metadata.get(name)
    assert row.response[:2] == expected.response[:2]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_continued_rows_are_those_that_nothing_ended(tiny, sampling, tmp_path):
    """Also those of a file, which keep their seeds."""
    asked = SAMPLINGS[sampling]
    expected = tiny.generate(PROMPTS, **asked)
    rows = aborted(tiny, lambda: tiny.generate(PROMPTS, **asked))
    later = tiny.generate([*rows, PROMPTS[0]], **asked)
    assert later.prompt_token_ids[:3] == expected.prompt_token_ids
    for row, other in zip(later, expected, strict=False):
        assert_same(row, other)
        assert row.weight_versions == [(0, 0)]
    save_rollouts(rows, tmp_path / "rows.jsonl", tiny.tokenizer)
    asked = {**asked, "seed": None}
    later = tiny.generate(load_rollouts(tmp_path / "rows.jsonl"), **asked)
    for row, other in zip(later, expected, strict=True):
        assert_same(row, other)
    streamed = [*tiny.stream(rows[1], **asked)]
    assert [t for chunk in streamed for t in chunk.token_ids] == expected[1].token_ids
    assert "".join(chunk.text for chunk in streamed) == expected[1].completion


def test_stop_string_may_begin_in_the_first_part(tiny):
    [whole] = tiny.generate(PROMPTS[0], temperature=0, **LONG)
    [row] = aborted(tiny, lambda: tiny.generate(PROMPTS[0], temperature=0, **LONG))
    cut = len(row.token_ids)
    stop = tiny.tokenizer.decode(whole.token_ids[cut - 1 : cut + 1])
    [first] = tiny.generate(PROMPTS[0], temperature=0, stop=stop, **LONG)
    if len(first.token_ids) > cut:  # the text comes here first
        [later] = tiny.generate(row, temperature=0, stop=stop, **LONG)
        assert_same(later, first)


@pytest.mark.parametrize("where", ["in an answer", "between turns"])
def test_conversation_is_continued(caller, where, tmp_path):
    asked = {"tools": [calculator("84")], "max_tokens": 200, "temperature": 0}
    [expected] = caller.generate(question("12 * 7"), **asked)
    assert expected.metadata["num_turns"] == 2
    if where == "between turns":
        row = ended_at_its_tool(caller)
        assert (row.finish_reason, row.metadata["limit"]) == ("abort", "pause")
        assert [message["role"] for message in row.messages] == ["user", "assistant", "tool"]
        ids, mask, _ = row.response
        assert row.token_ids == [token for token, bit in zip(ids, mask, strict=True) if bit]
        assert 0 < sum(mask) < len(mask) and row.metadata["num_turns"] == 1
    else:
        [row] = aborted(caller, lambda: caller.generate(question("12 * 7"), **asked))
    save_rollouts([row], tmp_path / "row.jsonl", caller.tokenizer)
    for prompt in (row, load_rollouts(tmp_path / "row.jsonl")[0]):
        [later] = caller.generate(prompt, **asked)
        assert later.response[:2] == expected.response[:2]
        assert later.response[2] == pytest.approx(expected.response[2], abs=1e-3)
        assert later.messages == expected.messages and later.finish_reason == "stop"
        for name in ("num_turns", "completion_tokens"):
            assert later.metadata[name] == expected.metadata[name]
        calls = [call["arguments"] for call in later.metadata["tool_calls"]]
        assert calls == [call["arguments"] for call in expected.metadata["tool_calls"]]


def test_row_that_cannot_be_continued_is_refused_by_name(tiny, caller):
    whole = tiny.generate(PROMPTS[0], temperature=0, max_tokens=5)
    [row] = aborted(tiny, lambda: tiny.generate(PROMPTS[0], temperature=0, **LONG))
    with refused(PromptError, "prompt 1 is a row that ended by 'length'"):
        tiny.generate([row, whole[0]])
    for key, value in {"n": 2, "max_tokens": 1, "regex": "a*", "logprobs": 2}.items():
        with refused(ConfigError, key=key):
            tiny.generate(row, **{key: value})
    with refused(PromptError, "generate"):
        tiny.score(row, "a")
    with refused(PromptError, "pass the tools"):
        caller.generate(ended_at_its_tool(caller), tools=[])
