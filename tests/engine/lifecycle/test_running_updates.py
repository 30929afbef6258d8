"""New weights under running rows are what a loop on Transformers computes that changes its weights
between two tokens, with its keys and values kept or computed again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from _inf.runtime.extras import has_verl
from inf import EngineDeadError, InferenceEngine, InferenceError
from tests.engine.lifecycle.test_weights import trained
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import logprobs
from tests.support.running import RunningRow, begun, have, running, stand_still
from tests.support.scripts import HANG_SECONDS
from tests.support.tiny import tiny_model

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "prompt_length": 1000,
    "response_length": 256,
    "max_model_len": 2000,
    "enforce_eager": True,
}
if has_verl():  # several buckets; and prompts that are computed in part
    SETTINGS |= {"update_weights_bucket_megabytes": 1, "free_cache_engine": True}
    SETTINGS |= {"max_num_batched_tokens": 128}
PROMPTS = token_prompts(4, longest=60, seed=48)
LONG: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True}
GREEDY: dict[str, Any] = {"temperature": 0, **LONG}
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 7, **LONG}


@pytest.fixture(scope="module")
def served() -> Iterator[InferenceEngine]:
    folder = tiny_model(layers=12, tied=True, initializer_range=0.15)
    asked = {"hang_timeout": HANG_SECONDS} if has_verl() else {}
    with InferenceEngine(model_path=str(folder), rollout=SETTINGS, **asked) as engine:
        yield engine


@pytest.fixture(scope="module")
def models(served: InferenceEngine) -> list[Any]:
    return [trained(served, seed) for seed in (200, 201, 202)]


@pytest.fixture
def old(served: InferenceEngine, models: list[Any]) -> int:
    """The first model is served; its version."""
    served.resume()
    return served.update_weights(models[0])


@torch.no_grad()
def by_hand(
    models: Sequence[Any], prompt: list[int], ids: list[int], firsts: Sequence[int], again: bool
) -> torch.Tensor:
    """The logits of each of `ids`: with each model from the first token that is its own on.

    again: whether a model computes all keys and values again, or keeps those of the ones before.
    """
    whole, cache, rows = prompt + ids, DynamicCache(), list[torch.Tensor]()
    ends = [*firsts[1:], len(ids)]
    for model, first, end in zip(models, firsts, ends, strict=True):
        if again:
            cache = DynamicCache()
        begin = cache.get_seq_length()
        until_token = len(prompt) + end - 1  # the last token is not computed
        new = torch.tensor([whole[begin:until_token]])
        positions = torch.arange(begin, until_token)
        logits = model(
            new,
            past_key_values=cache,
            position_ids=positions[None],
            cache_position=positions,
            use_cache=True,
        ).logits[0]
        rows.append(logits[len(logits) - (end - first) :].float())
    return torch.cat(rows)


def same(row: Any, prompt: list[int], model: Any) -> bool:
    """Whether one model sampled all of a row."""
    computed = logprobs(by_hand([model], prompt, row.token_ids, [0], again=False), row.token_ids)
    return bool(row.logprobs == pytest.approx(computed, abs=1e-3))


def assert_by_hand(
    row: Any, prompt: list[int], models: Sequence[Any], *, again: bool, greedy: bool = True
) -> None:
    ids, firsts = row.token_ids, [first for _, first in row.weight_versions]
    assert len(firsts) == len(models), row.weight_versions
    logits = by_hand(models, prompt, ids, firsts, again)
    assert row.logprobs == pytest.approx(logprobs(logits, ids), abs=1e-3)
    if greedy:
        chosen = logits[torch.arange(len(ids)), ids]
        assert float((logits.max(-1).values - chosen).max()) < 1e-3


@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_rows_go_on_as_a_loop_by_hand_does(
    served: InferenceEngine, models: list[Any], again: bool, sampling: dict[str, Any]
) -> None:
    greedy = sampling is GREEDY
    for _ in range(5):  # on a busy machine a row may end before an update
        of = {served.update_weights(models[0]): models[0]}
        rows = running(served, as_ids(PROMPTS), 3, **sampling)
        of[served.update_weights(models[1], running="keep", recompute=again)] = models[1]
        assert have(rows, 60)
        number = served.weight_version + 5
        last = served.update_weights(models[2], version=number, running="keep", recompute=again)
        assert last == number
        of[last] = models[2]
        for row, prompt in zip(rows, PROMPTS, strict=True):
            row.end()
            assert row.finish_reason == "length" and len(row.token_ids) == 120
            seen = [of[version] for version, _ in row.weight_versions]
            assert_by_hand(row, prompt, seen, again=again, greedy=greedy)
        if all([version for version, _ in row.weight_versions] == [*of] for row in rows):
            return
    pytest.fail("no rows saw all three weights")


@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
def test_no_new_row_rests_on_keys_and_values_of_the_old_weights(
    served: InferenceEngine, models: list[Any], old: int, again: bool
) -> None:
    served.generate(as_ids(PROMPTS), **{**GREEDY, "max_tokens": 2})  # their prompts are cached
    kept = running(served, as_ids(PROMPTS), 3, **GREEDY)
    new = served.update_weights(models[1], running="keep", recompute=again)
    during = served.generate(as_ids(PROMPTS), **GREEDY)
    for row in kept:
        row.end()
    mixed = [prompt + row.token_ids for prompt, row in zip(PROMPTS, kept, strict=True)]
    after = served.generate(as_ids(mixed), **{**GREEDY, "max_tokens": 20})
    for prompt, row in [*zip(PROMPTS, during, strict=True), *zip(mixed, after, strict=True)]:
        assert [*map(tuple, row.weight_versions)] == [(new, 0)]
        assert_by_hand(row, prompt, models[1:2], again=False)


@pytest.fixture(scope="module")
def one_by_one() -> Iterator[InferenceEngine]:
    """One on `hf` that computes a row at a time."""
    folder = tiny_model(layers=12, tied=True, initializer_range=0.15)
    settings = {"name": "hf", "dtype": "float32", "max_num_seqs": 1, "response_length": 256}
    with InferenceEngine(model_path=str(folder), rollout=settings) as engine:
        yield engine


def updated_meanwhile(
    engine: InferenceEngine, models: Sequence[Any], attempt: int, version: int, **asked: Any
) -> list[Any]:
    """Two rows of one prompt, which begin with the first weights and have the second ones later."""
    engine.update_weights(models[0], version=7)
    call = begun(lambda: engine.generate(as_ids(PROMPTS[:1] * 2), **asked, ignore_eos=True))
    wait([call], 0.03 * attempt)
    engine.update_weights(models[1], version=version, running="keep")
    return [*call.result(60)]


def test_row_that_waits_begins_with_new_weights_of_the_same_version(
    one_by_one: InferenceEngine, models: list[Any]
) -> None:
    """Also if its prompt was computed for a row that began before."""
    asked = {"temperature": 0, "max_tokens": [120, 20]}
    for attempt in range(1, 20):  # the first row may not have begun, or have ended
        first, second = updated_meanwhile(one_by_one, models, attempt, 7, **asked)
        if not same(first, PROMPTS[0], models[1]) and not same(second, PROMPTS[0], models[0]):
            break
    assert second.cached_tokens == 0 and not same(first, PROMPTS[0], models[0])
    assert_by_hand(second, PROMPTS[0], models[1:2], again=False)


def test_prompt_is_scored_by_the_weights_with_which_its_call_begins(
    one_by_one: InferenceEngine, models: list[Any]
) -> None:
    asked = {"temperature": 0, "max_tokens": 120, "prompt_logprobs": True}
    for attempt in range(1, 20):
        first, _ = updated_meanwhile(one_by_one, models, attempt, 8, **asked)
        if [version for version, _ in first.weight_versions] == [7, 8]:
            break
    assert [version for version, _ in first.weight_versions] == [7, 8]
    before, after = PROMPTS[0][:1], PROMPTS[0][1:]
    expected = logprobs(by_hand(models[:1], before, after, [0], again=False), after)
    assert first.prompt_logprobs[1:] == pytest.approx(expected, abs=1e-3)


@pytest.mark.verl
def test_prompt_that_is_computed_in_part_is_computed_by_the_new_weights_alone(
    served: InferenceEngine, models: list[Any], old: int
) -> None:
    [long] = token_prompts(1, longest=900, shortest=850, seed=49)
    for _ in range(5):  # 7 parts
        call = begun(lambda: served.generate(as_ids([long]), **{**GREEDY, "max_tokens": 8}))
        time.sleep(0.02)
        new = served.update_weights(models[1], running="keep")
        [row] = call.result(60)
        assert_by_hand(
            row,
            long,
            models[:2]
            if len(row.weight_versions) > 1
            else models[1:2]
            if row.weight_version == new
            else models[:1],
            again=False,
        )
        served.update_weights(models[0])


SAMPLED: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "min_tokens": 100},
    {"top_p": 0.9, "top_k": 40, "logprobs": 2},
    {"regex": "[a-z ]{110,118}", "ignore_eos": False},
    {"logit_bias": {5: 3.0, 9: -50.0}},
]


@pytest.mark.parametrize("again", [False, True], ids=["kept", "computed again"])
def test_seeds_penalties_grammars_and_biases_go_on(
    served: InferenceEngine, models: list[Any], old: int, again: bool
) -> None:
    """The weights are replaced by equal ones."""

    def begin() -> list[RunningRow]:
        asked = zip(as_ids(PROMPTS), SAMPLED, strict=True)
        return [RunningRow(served, prompt, **{**SEEDED, **each}) for prompt, each in asked]

    expected = begin()
    for row in expected:
        row.end()
    rows = begin()
    assert have(rows, 3)
    served.update_weights(models[0], running="keep", recompute=again)
    for row, other in zip(rows, expected, strict=True):
        assert row.end().token_ids == other.token_ids
        assert row.logprobs == pytest.approx(other.logprobs, abs=1e-3)
        assert row.finish_reason == other.finish_reason
    assert any(len(row.weight_versions) == 2 for row in rows)


def test_weights_change_under_rows_that_a_pause_keeps(
    served: InferenceEngine, models: list[Any], old: int
) -> None:
    rows = running(served, as_ids(PROMPTS), 3, **GREEDY)
    served.pause("keep")
    counts = [len(row.token_ids) for row in rows]
    new = served.update_weights(models[1])
    assert served.paused and stand_still(rows, 0.1)
    served.reset_prefix_cache()
    served.resume()
    for row, prompt, count in zip(rows, PROMPTS, counts, strict=True):
        row.end()
        (first, _), (second, place) = row.weight_versions
        assert (first, second) == (old, new) and place >= count
        assert_by_hand(row, prompt, models[:2], again=False)


def test_row_that_was_ended_is_continued_with_the_new_weights(
    served: InferenceEngine, models: list[Any], old: int
) -> None:
    call = begun(lambda: served.generate(as_ids(PROMPTS), **GREEDY))
    clock = running(served, as_ids(PROMPTS[:1]), 3, **GREEDY)
    served.pause("abort")
    new = served.update_weights(models[1])
    served.resume()
    later = begun(lambda: served.generate(call.result(60).rows, **GREEDY))
    running(served, as_ids(PROMPTS[:1]), 3, **GREEDY)
    last = served.update_weights(models[2], running="keep", recompute=True)
    of = {old: models[0], new: models[1], last: models[2]}
    for row, prompt in zip(later.result(60), PROMPTS, strict=True):
        assert row.finish_reason == "length" and len(row.token_ids or ()) == 120
        seen = [of[version] for version, _ in row.weight_versions]
        assert new in dict(row.weight_versions)
        assert_by_hand(row, prompt, seen, again=True)
    assert clock[0].end().finish_reason == "abort"


def test_rows_that_are_to_be_computed_again_end_with_all_they_have(
    served: InferenceEngine, models: list[Any], old: int
) -> None:
    streams = running(served, as_ids(PROMPTS), 3, **GREEDY)
    call = begun(lambda: served.generate(as_ids(PROMPTS), **GREEDY))
    wait([call], 0.1)
    served.pause("keep")
    counts = [len(row.token_ids) for row in streams]
    of = {old: models[0], served.update_weights(models[1], recompute=True): models[1]}
    served.pause("abort")
    for row, count in zip(streams, counts, strict=True):
        assert len(row.end(10).token_ids) >= count
    served.resume()  # the call may have come while it was paused
    for row, prompt in zip([*streams, *call.result(60)], PROMPTS * 2, strict=True):
        if row.token_ids:
            seen = [of[version] for version, _ in row.weight_versions]
            assert_by_hand(row, prompt, seen, again=True)


@pytest.mark.verl
def test_rows_that_slept_go_on(served: InferenceEngine, models: list[Any], old: int) -> None:
    rows = running(served, as_ids(PROMPTS), 3, **GREEDY)
    served.pause("keep")
    served.sleep()
    with pytest.raises(InferenceError, match="asleep; wake_up"):
        served.resume()
    served.wake_up()
    served.resume()
    for row, prompt in zip(rows, PROMPTS, strict=True):
        assert_by_hand(row.end(), prompt, models[:1], again=False)


def test_version_of_a_batch_is_that_of_its_last_token(
    served: InferenceEngine, models: list[Any], old: int
) -> None:
    clock = running(served, as_ids(PROMPTS[:1]), 3, **GREEDY)
    call = begun(lambda: served.generate(as_ids(PROMPTS), n=2, **SEEDED))
    for _ in range(3):
        new = served.update_weights(models[1], running="keep")
    clock[0].end()
    for row in call.result(120):
        versions = [version for version, _ in row.weight_versions]
        assert versions == sorted(set(versions)) and row.weight_version == versions[-1] <= new
        places = [place for _, place in row.weight_versions]
        assert places[0] == 0 and places == sorted(set(places)) and places[-1] < 120
    told = call.result().to_dict()[0]
    assert told["weight_versions"] == [[*each] for each in call.result()[0].weight_versions]


# ─── Faults; the last one ends the engine ───


@pytest.mark.verl
def test_rows_fail_by_an_update_that_breaks_off_under_them(
    served: InferenceEngine, models: list[Any], old: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, sent = served.rollout._engine.update_weights_from_tensor, list[Any]()

    async def fails_second(request: Any) -> Any:
        sent.append(request)
        if len(sent) == 2:
            raise OSError("no shared memory left")
        return await upstream(request)

    rows = running(served, as_ids(PROMPTS), 3, **GREEDY)
    with monkeypatch.context() as patch:
        patch.setattr(served.rollout._engine, "update_weights_from_tensor", fails_second)
        with pytest.raises(InferenceError, match="half way.*no shared memory left"):
            served.update_weights(models[1], running="keep")
    for row in rows:
        with pytest.raises(InferenceError, match="half way.*call update_weights"):
            row.end(10)
    served.update_weights(models[1], running="keep")
    [row] = served.generate(as_ids(PROMPTS[:1]), **GREEDY)
    assert_by_hand(row, PROMPTS[0], models[1:2], again=False)


@pytest.mark.verl
@pytest.mark.slow
def test_pause_longer_than_the_hang_timeout_is_no_hang(
    served: InferenceEngine, models: list[Any], old: int
) -> None:
    [row] = running(served, as_ids(PROMPTS[:1]), 3, **GREEDY)
    served.pause("keep")
    time.sleep(HANG_SECONDS + 2)
    assert not served.dead
    served.resume()
    assert row.end().finish_reason == "length"


@pytest.mark.verl
def test_engine_killed_while_it_is_paused_is_dead_for_all_that_wait(
    served: InferenceEngine, models: list[Any], old: int
) -> None:
    rows = running(served, as_ids(PROMPTS), 3, **GREEDY)
    served.pause("keep")
    waiting = begun(lambda: served.generate("Hi"))
    assert not waiting.done()
    served.rollout.host.children[0].kill()
    for row in rows:
        with pytest.raises(EngineDeadError):
            row.end(10)
    for ask in (lambda: waiting.result(10), served.resume, lambda: served.pause("wait")):
        with pytest.raises(EngineDeadError, match="exit code -9"):
            ask()
    served.shutdown()
