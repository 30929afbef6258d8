"""`pause` holds all rows back in one of three ways, and `resume` lets them go on."""

from __future__ import annotations

import time
from concurrent.futures import wait
from typing import Any

import psutil
import pytest

from inf import ConfigError, GenerationTimeout, InferenceEngine
from tests.support.prompts import as_ids, token_prompts
from tests.support.refusals import refused
from tests.support.running import (
    RunningRow,
    begun,
    running,
    stand_still,
)
from tests.support.schedulers import in_flight
from tests.support.scripts import until
from tests.support.tool_calling import calculator, question

PROMPTS = as_ids(token_prompts(4, longest=40, seed=47))
LONG = {"max_tokens": 200, "ignore_eos": True}
GREEDY = {"temperature": 0, **LONG}
SEEDED = {"temperature": 1.0, "seed": 7, **LONG}


@pytest.fixture(autouse=True)
def _goes_on(tiny):
    yield
    tiny.resume()


def whole(engine: InferenceEngine, place: int = 0, **keywords: Any) -> RunningRow:
    """The row of a prompt without a pause; a first one computes the prompt, whose numbers are then
    cached."""
    return [RunningRow(engine, PROMPTS[place], **keywords).end() for _ in range(2)][1]


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_kept_row_goes_on_bit_for_bit(tiny, sampling):
    expected = whole(tiny, **sampling)
    for tokens in (1, 20):
        [row] = running(tiny, PROMPTS[:1], tokens, **sampling)
        for _ in range(3):
            tiny.pause("keep")
            assert tiny.paused and stand_still([row], 0.1)
            tiny.resume()
            assert not tiny.paused
        row.end()
        assert row.token_ids == expected.token_ids
        assert row.logprobs == expected.logprobs


def test_no_row_of_a_kept_batch_is_lost_or_changed(tiny):
    expected = tiny.generate(PROMPTS, n=4, **SEEDED).token_ids
    call = begun(lambda: tiny.generate(PROMPTS, n=4, **SEEDED).token_ids)
    while not call.done():  # also before its first token, between two prompts and at its end
        tiny.pause("keep")
        tiny.resume()
    assert call.result() == expected


# What ends a row at a place, given the greedy row's token there and its text.
ENDS = {
    "max_tokens": lambda place, token, text: place,
    "stop_token_ids": lambda place, token, text: [token],
    "stop": lambda place, token, text: text,
    "regex": lambda place, token, text: f"[ab]{{{place}}}",
    "repetition_detection": lambda place, token, text: {
        "max_pattern_size": 1,
        "min_count": max(2, place),
    },
}


@pytest.mark.parametrize("end", ENDS)
def test_row_whose_last_token_comes_while_rows_are_ended_has_ended_by_itself(tiny, end):
    """Each row would end at another place, so wherever they are ended, one is at its last token."""
    asked = {"temperature": 0, "max_tokens": 50}
    [ids] = tiny.generate(PROMPTS[0], ignore_eos=True, **asked).token_ids
    texts = [tiny.tokenizer.decode([token]) for token in ids]
    places = range(1, len(ids) + 1)
    asked[end] = [*map(ENDS[end], places, ids, texts)]
    if end == "stop":
        asked["min_tokens"] = [*places]
    if end == "repetition_detection":
        asked["allowed_token_ids"] = [5]
    prompts, reasons = PROMPTS[:1] * len(ids), set[str | None]()
    expected = tiny.generate(prompts, **asked)
    for attempt in range(1, 4):
        call = begun(lambda: tiny.generate(prompts, **asked))
        wait([call], 0.04 * attempt)
        tiny.pause("abort")
        tiny.resume()
        for row, other in zip(call.result(60), expected, strict=True):
            ended = row.token_ids == other.token_ids
            assert row.finish_reason == (other.finish_reason if ended else "abort")
            reasons.add(row.finish_reason)
    assert "abort" in reasons


@pytest.mark.verl
def test_rows_whose_grammars_are_being_compiled_are_ended_too(tiny):
    words = "|".join(f"{number:05}" for number in range(8000))
    slow = [f"({words}){{3,{most}}}" for most in range(4, 14)]
    call = begun(lambda: tiny.generate(PROMPTS[:1] * len(slow), regex=slow, **GREEDY))
    sent = tiny.rollout.engine().tokenizer_manager.rid_to_state
    assert until(lambda: bool(sent), 60)
    tiny.pause("abort")
    assert "abort" in {row.finish_reason for row in call.result(60)}
    assert not in_flight(tiny)


def test_rows_end_before_a_wait_returns_and_later_calls_wait_with_their_own_timeouts(tiny):
    expected = tiny.generate(PROMPTS[0], **GREEDY).token_ids
    [row] = running(tiny, PROMPTS[:1], 5, **GREEDY)
    tiny.pause()
    assert row.end(5).token_ids == expected[0]
    later = begun(lambda: tiny.generate(PROMPTS[0], **GREEDY).token_ids)
    for ask in (tiny.generate, lambda *args, **keywords: list(tiny.stream(*args, **keywords))):
        with pytest.raises(GenerationTimeout):
            ask("Hi", timeout=0.2)
    tiny.pause("keep")
    tiny.pause("abort")
    assert not later.done()
    tiny.resume()
    assert later.result(60) == expected


def test_frozen_row_ends_at_once_by_its_timeout_and_another_goes_on(tiny):
    expected = whole(tiny, 1, **GREEDY)
    [late] = running(tiny, PROMPTS[:1], 1, timeout=1, **{**GREEDY, "max_tokens": 600})
    [other] = running(tiny, PROMPTS[1:2], 1, **GREEDY)
    tiny.pause("keep")
    with pytest.raises(GenerationTimeout):
        late.end(10)
    assert not other.ended
    tiny.resume()
    assert other.end().token_ids == expected.token_ids


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_frozen_rows_end_when_another_pause_says_so(tiny, mode):
    longer = {**GREEDY, "max_tokens": 600}
    expected = whole(tiny, **longer)
    [row] = running(tiny, PROMPTS[:1], 5, **longer)
    tiny.pause("keep")
    tiny.pause(mode)
    ids = row.end(30).token_ids
    assert row.finish_reason == {"wait": "length", "abort": "abort"}[mode]
    assert ids == expected.token_ids[: len(ids)] and tiny.paused


def test_tool_cannot_pause_the_engine_that_waits_for_it(caller):
    pauses = calculator(lambda expression: caller.pause())
    [row] = caller.generate(question("12 * 7"), tools=[pauses], max_tokens=100)
    assert "A tool cannot change the engine" in row.metadata["tool_calls"][0]["error"]
    assert not caller.paused


@pytest.mark.verl
def test_paused_scheduler_does_not_burn_a_core(tiny):
    [row] = running(tiny, PROMPTS[:1], 1, **GREEDY)
    tiny.pause("keep")
    scheduler = psutil.Process(tiny.rollout.host.children[0].pid)
    before = sum(scheduler.cpu_times()[:2])
    time.sleep(1)
    assert sum(scheduler.cpu_times()[:2]) - before < 0.3 and not row.ended
    tiny.resume()
    row.end()


def test_reset_cache_is_not_used_by_later_rows(tiny):
    expected = whole(tiny, **GREEDY)
    [row] = running(tiny, PROMPTS[:1], 5, **GREEDY)
    tiny.reset_prefix_cache()
    [beside] = tiny.generate(PROMPTS[0], temperature=0, max_tokens=8)
    row.end()
    [after] = tiny.generate(PROMPTS[0], temperature=0, max_tokens=8)
    assert row.token_ids == expected.token_ids
    assert beside.token_ids == after.token_ids == expected.token_ids[:8]
    assert beside.cached_tokens == 0
    tiny.reset_prefix_cache()
    assert tiny.generate(PROMPTS[0], max_tokens=1)[0].cached_tokens == 0


def test_wrong_modes_are_refused_by_name(tiny):
    with refused(ConfigError, key="mode"):
        tiny.pause("later")
    for key, value in {"running": "abort", "recompute": True}.items():
        with refused(ConfigError, key=key):
            tiny.update_weights([], **{key: value})
