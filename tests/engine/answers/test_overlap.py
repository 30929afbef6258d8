"""SGLang's overlap schedule, the default on a GPU: the rows are those of `hf`.

Here are the keywords whose grammars, filters and samples make steps differ; `test_backends.py` has
the others, drawn. `pytest --overlap` runs all other tests with overlapped steps.
"""

import dataclasses

import pytest

from tests.support.engines import started
from tests.support.keyword_sets import MARKS, drawn
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import Transformers, assert_greedy, assert_same_rows
from tests.support.running import begun
from tests.support.schedulers import in_flight
from tests.support.scripts import until
from tests.support.tiny import tiny_model
from tests.support.trained import adapter, loaded, train

pytestmark = pytest.mark.verl

LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras_per_batch": 2}
IDS = token_prompts(9, longest=60, seed=23)
PROMPTS = as_ids(IDS)
JSON = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
GREEDY = {"temperature": 0, "max_tokens": 40}
SEEDED = {"temperature": 1.0, "seed": 5, "max_tokens": 40}
MASK = {"sampling_mask": True, "prompt_logprobs": 2}
KEYWORDS = {
    "regex of rows that end together": {**SEEDED, "regex": "[a-f]{3}"},
    "json_schema": {**SEEDED, "json_schema": JSON},
    "min_tokens beyond a grammar's end": {**SEEDED, "regex": "a{1,6}|b", "min_tokens": 4},
    "n and sampling_mask": {**SEEDED, "n": 3, "top_p": 0.9, **MASK},
    "logprobs": {**GREEDY, "logprobs": 4, "prompt_logprobs": 2, "max_tokens": 9},
    **{f"drawn {number}": drawn(number, len(PROMPTS)) for number in (5, 6, 7, 8, 9)},
}


@pytest.fixture(scope="module")
def overlapped():
    rollout = {"prompt_length": 256, "response_length": 64}
    rollout |= {"max_model_len": 2000, "enforce_eager": True, "free_cache_engine": True}
    rollout["max_num_seqs"] = 6  # fewer than the prompts: rows begin beside rows that run
    rollout["engine_kwargs"] = {"sglang": {**LORA, "disable_overlap_schedule": False}}
    with started(**rollout) as engine:
        assert engine.rollout._engine.server_args.disable_overlap_schedule is False
        yield engine


@pytest.mark.parametrize("keywords", KEYWORDS)
def test_overlapped_answers_are_those_of_hf(overlapped, hf, keywords, monkeypatch):
    for engine in (overlapped, hf):
        model = dataclasses.replace(engine.model, thought_marks=MARKS)
        monkeypatch.setattr(engine, "model", model)
    ours, expected = (each.generate(PROMPTS, **KEYWORDS[keywords]) for each in (overlapped, hf))
    assert_same_rows(ours, expected, within=1e-4)


def test_overlapped_samples_of_a_prompt_compute_it_once(overlapped):
    prompts = as_ids([[*range(first, first + 48)] for first in (40, 120, 200, 280)])
    output = overlapped.generate(prompts, n=8, temperature=1.0, max_tokens=5, ignore_eos=True)
    assert sum(about["cached_tokens"] for about in output.metadata) == 4 * 7 * 47


def test_overlapped_rows_have_their_adapters(overlapped, hf, tmp_path):
    folder = adapter(tiny_model(), tmp_path / "adapter", scale=0.4)
    plain = hf.generate(PROMPTS, **GREEDY).token_ids
    names = ["one", None] * 4 + ["one"]
    for engine in (overlapped, hf):
        engine.load_adapter("one", folder)
    try:
        ours, expected = (e.generate(PROMPTS, adapter=names, **GREEDY) for e in (overlapped, hf))
    finally:
        for engine in (overlapped, hf):
            engine.unload_adapter("one")
    assert_same_rows(ours, expected)
    assert [row != plain[at] for at, row in enumerate(ours.token_ids)] == [*map(bool, names)]


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_overlapped_stream_that_its_reader_leaves_ends_and_disturbs_no_row_beside_it(
    overlapped, hf, penalty
):
    rows = {**SEEDED, "max_tokens": 64, "repetition_penalty": penalty}
    expected = hf.generate(PROMPTS, **rows).token_ids
    left = overlapped.stream("Hi", max_tokens=1700, ignore_eos=True, repetition_penalty=penalty)
    next(left)
    beside = begun(lambda: overlapped.generate(PROMPTS, **rows).token_ids)
    assert until(lambda: in_flight(overlapped) > 1, 60)
    left.close()
    assert beside.result(60) == expected
    assert until(lambda: not in_flight(overlapped), 60)


def test_overlapped_rows_stand_still_and_go_on(overlapped, hf):
    """Between any two steps; and recomputed, here by the weights that they had."""
    weights = loaded(tiny_model()).state_dict()
    expected = hf.generate(PROMPTS, **SEEDED).token_ids
    for change in (
        overlapped.resume,
        lambda: overlapped.update_weights(weights, running="keep", recompute=True),
    ):
        call = begun(lambda: overlapped.generate(PROMPTS, **SEEDED).token_ids)
        while not call.done():
            overlapped.pause("keep")
            change()
            overlapped.resume()
        assert call.result() == expected


def test_overlapped_engine_takes_new_weights_and_sleeps(overlapped, hf):
    trained = Transformers.of(tiny_model())
    train(trained.model, seed=3)
    overlapped.update_weights(trained.model)
    assert_greedy(trained, IDS, overlapped.generate(PROMPTS, **GREEDY), 40)
    overlapped.update_weights(loaded(tiny_model()))
    expected = hf.generate(PROMPTS, **GREEDY).token_ids
    overlapped.sleep()
    overlapped.wake_up()
    assert overlapped.generate(PROMPTS, **GREEDY).token_ids == expected
