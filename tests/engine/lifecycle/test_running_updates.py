"""New weights under running rows are what a loop on Transformers computes that changes its weights
between two tokens, with its keys and values kept or computed again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import wait
from typing import Any

import pytest

from inf import EngineDeadError, InferenceEngine
from tests.support.engines import engine_fixture
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import logprobs
from tests.support.running import RunningRow, begun, have, running, stand_still
from tests.support.updates import assert_by_hand, by_hand, sampled_by, twelve_layers

PROMPTS = token_prompts(4, longest=60, seed=48)
IDS = as_ids(PROMPTS)
LONG = {"max_tokens": 120, "ignore_eos": True}
GREEDY = {"temperature": 0, **LONG}
SEEDED = {"temperature": 1.0, "seed": 7, **LONG}
again = pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])


@again
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_rows_go_on_as_a_loop_by_hand_does(updated, models, again, sampling):
    keep = {"running": "keep", "recompute": again}
    for _ in range(5):  # on a busy machine a row may end before an update
        of = {updated.update_weights(models[0]): models[0]}
        rows = running(updated, IDS, 3, **sampling)
        of[updated.update_weights(models[1], **keep)] = models[1]
        assert have(rows, 60)
        number = updated.weight_version + 5
        assert updated.update_weights(models[2], version=number, **keep) == number
        of[number] = models[2]
        for row in rows:
            row.end()
            assert row.finish_reason == "length" and len(row.token_ids) == 120
        assert_by_hand(rows, PROMPTS, of, again=again, greedy=sampling is GREEDY)
        if all([version for version, _ in row.weight_versions] == [*of] for row in rows):
            return
    pytest.fail("no rows saw all three weights")


@again
def test_no_new_row_rests_on_keys_and_values_of_the_old_weights(updated, models, old, again):
    updated.generate(IDS, **{**GREEDY, "max_tokens": 2})  # their prompts are cached
    kept = running(updated, IDS, 3, **GREEDY)
    new = updated.update_weights(models[1], running="keep", recompute=again)
    during = updated.generate(IDS, **GREEDY)
    mixed = [prompt + row.end().token_ids for prompt, row in zip(PROMPTS, kept, strict=True)]
    after = updated.generate(as_ids(mixed), **{**GREEDY, "max_tokens": 20})
    assert_by_hand([*during, *after], PROMPTS + mixed, {new: models[1]})


# One on `hf` that computes a row at a time.
one_by_one = engine_fixture(twelve_layers, name="hf", max_num_seqs=1, response_length=256)


def updated_meanwhile(
    engine: InferenceEngine, models: Sequence[Any], attempt: int, version: int, **asked: Any
) -> list[Any]:
    """Two rows of one prompt, which begin with the first weights and have the second ones later."""
    engine.update_weights(models[0], version=7)
    call = begun(lambda: engine.generate(IDS[:1] * 2, **{**GREEDY, **asked}))
    wait([call], 0.03 * attempt)
    engine.update_weights(models[1], version=version, running="keep")
    return [*call.result(60)]


def test_row_that_waits_begins_with_new_weights_of_the_same_version(one_by_one, models):
    """Also if its prompt was computed for a row that began before."""
    for attempt in range(1, 20):  # the first row may not have begun, or have ended
        first, second = updated_meanwhile(one_by_one, models, attempt, 7, max_tokens=[120, 20])
        begun_before = not sampled_by(first, PROMPTS[0], models[1])
        if begun_before and not sampled_by(second, PROMPTS[0], models[0]):
            break
    assert second.cached_tokens == 0 and not sampled_by(first, PROMPTS[0], models[0])
    assert_by_hand([second], PROMPTS[:1], {7: models[1]})


def test_prompt_is_scored_by_the_weights_with_which_its_call_begins(one_by_one, models):
    for attempt in range(1, 20):
        first, _ = updated_meanwhile(one_by_one, models, attempt, 8, prompt_logprobs=True)
        versions = [version for version, _ in first.weight_versions]
        if versions == [7, 8]:
            break
    assert versions == [7, 8]
    before, after = PROMPTS[0][:1], PROMPTS[0][1:]
    expected = logprobs(by_hand(models[:1], before, after), after)
    assert first.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-3)


@pytest.mark.verl
def test_prompt_that_is_computed_in_part_is_computed_by_the_new_weights_alone(updated, models):
    long = token_prompts(1, longest=900, shortest=850, seed=49)
    for _ in range(5):  # 7 parts
        of = {updated.update_weights(models[0]): models[0]}
        call = begun(lambda: updated.generate(as_ids(long), **{**GREEDY, "max_tokens": 8}))
        time.sleep(0.02)
        of[updated.update_weights(models[1], running="keep")] = models[1]
        assert_by_hand(call.result(60), long, of)


SAMPLED = [
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "min_tokens": 100},
    {"top_p": 0.9, "top_k": 40, "logprobs": 2},
    {"regex": "[a-z ]{110,118}", "ignore_eos": False},
    {"logit_bias": {5: 3.0, 9: -50.0}},
]


@again
def test_seeds_penalties_grammars_and_biases_go_on(updated, models, old, again):
    """The weights are replaced by equal ones."""

    def begin() -> list[RunningRow]:
        asked = zip(IDS, SAMPLED, strict=True)
        return [RunningRow(updated, prompt, **{**SEEDED, **each}) for prompt, each in asked]

    expected = [row.end() for row in begin()]
    rows = begin()
    assert have(rows, 3)
    updated.update_weights(models[0], running="keep", recompute=again)
    for row, other in zip(rows, expected, strict=True):
        assert row.end().token_ids == other.token_ids
        assert row.logprobs == pytest.approx(other.logprobs, abs=1e-3)
        assert row.finish_reason == other.finish_reason
    assert any(len(row.weight_versions) == 2 for row in rows)


@pytest.mark.parametrize("how", ["wait", "keep"])
def test_weights_change_under_rows_that_a_pause_keeps(updated, models, old, how):
    rows = running(updated, IDS, 3, **GREEDY)
    updated.pause("keep")
    counts = [len(row.token_ids) for row in rows]
    new = updated.update_weights(models[1], running=how)
    updated.reset_prefix_cache()
    assert updated.paused and stand_still(rows, 0.1)
    updated.resume()
    for row, count in zip(rows, counts, strict=True):
        (first, _), (second, place) = row.end().weight_versions
        assert (first, second) == (old, new) and place >= count
    assert_by_hand(rows, PROMPTS, {old: models[0], new: models[1]})


def test_row_that_was_ended_is_continued_with_the_new_weights(updated, models, old):
    call = begun(lambda: updated.generate(IDS, **GREEDY))
    clock = running(updated, IDS[:1], 3, **GREEDY)
    updated.pause("abort")
    new = updated.update_weights(models[1])
    updated.resume()
    later = begun(lambda: updated.generate(call.result(60).rows, **GREEDY))
    running(updated, IDS[:1], 3, **GREEDY)
    last = updated.update_weights(models[2], running="keep", recompute=True)
    rows = later.result(60)
    for row, told in zip(rows, rows.to_dict(), strict=True):
        assert row.finish_reason == "length" and len(row.token_ids) == 120
        assert new in dict(row.weight_versions)
        assert row.weight_version == row.weight_versions[-1][0]  # that of its last token
        assert told["weight_versions"] == [[*each] for each in row.weight_versions]
    assert_by_hand(rows, PROMPTS, dict(zip([old, new, last], models, strict=True)), again=True)
    assert clock[0].end().finish_reason == "abort"


def test_rows_that_are_to_be_computed_again_end_with_all_they_have(updated, models, old):
    streams = running(updated, IDS, 3, **GREEDY)
    call = begun(lambda: updated.generate(IDS, **GREEDY))
    wait([call], 0.1)
    updated.pause("keep")
    counts = [len(row.token_ids) for row in streams]
    of = {old: models[0], updated.update_weights(models[1], recompute=True): models[1]}
    updated.pause("abort")
    for row, count in zip(streams, counts, strict=True):
        assert len(row.end(10).token_ids) >= count
    updated.resume()  # the call may have come while it was paused
    whole = zip([*streams, *call.result(60)], PROMPTS * 2, strict=True)
    for row, prompt in whole:
        if row.token_ids:
            assert_by_hand([row], [prompt], of, again=True)


@pytest.mark.verl
def test_engine_killed_while_it_is_paused_is_dead_for_all_that_wait(updated):
    rows = running(updated, IDS, 3, **GREEDY)
    updated.pause("keep")
    waiting = begun(lambda: updated.generate("Hi"))
    assert not waiting.done()
    updated.rollout.host.children[0].kill()
    for row in rows:
        with pytest.raises(EngineDeadError):
            row.end(10)
    for ask in (lambda: waiting.result(10), updated.resume, lambda: updated.pause("wait")):
        with pytest.raises(EngineDeadError, match="exit code -9"):
            ask()
