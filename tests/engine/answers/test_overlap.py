"""SGLang's overlap schedule, the default on a GPU: the same answers as without it.

Two engines differ in nothing else. `pytest --overlap` runs all other tests with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from inf import InferenceEngine
from tests.support.keyword_sets import MARKS, drawn, of_prompt
from tests.support.prompts import as_ids, token_prompts
from tests.support.running import begun
from tests.support.schedulers import in_flight
from tests.support.scripts import until
from tests.support.tiny import tiny_model
from tests.support.trained import adapter, loaded, train

pytestmark = pytest.mark.verl

Engines: TypeAlias = tuple[InferenceEngine, InferenceEngine]  # overlapped, serial
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras_per_batch": 2}
PROMPTS = as_ids(token_prompts(9, longest=60, seed=23))
JSON = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 99}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 40}
SEEDED: dict[str, Any] = {"seed": 5, "max_tokens": 40}
KEYWORDS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "seed and filters": {**SEEDED, "top_p": 0.8, "top_k": 40, "min_p": 0.01},
    "repetition_penalty": {**GREEDY, "repetition_penalty": 1.4},
    "penalties": {**SEEDED, "presence_penalty": 1.1, "frequency_penalty": 0.6},
    "regex": {**SEEDED, "regex": "[a-f]{2,30}"},
    "regex of rows that end together": {**SEEDED, "regex": "[a-f]{3}"},
    "json_schema": {**SEEDED, "json_schema": JSON},
    "min_tokens": {**GREEDY, "min_tokens": 33},
    "min_tokens beyond a grammar's end": {**SEEDED, "regex": "a{1,6}|b", "min_tokens": 4},
    "bad_words": {**SEEDED, "allowed_token_ids": [68, 69, 70], "bad_words": ["ab", "bb", "ca"]},
    "stop": {**SEEDED, "stop": ["e", "th"]},
    "n": {**SEEDED, "n": 3, "max_tokens": 20},
    "sampling_mask": {**SEEDED, "top_p": 0.9, "sampling_mask": True},
    "logprobs": {**GREEDY, "logprobs": 4, "prompt_logprobs": 2, "max_tokens": 9},
    # Steps with penalties and without them follow each other.
    "of a row each": {
        "max_tokens": [25, 31, 7, 40, 12, 38, 19, 40, 3],
        "temperature": [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0],
        "seed": [None, 3, 4, None, 5, 6, None, 7, None],
        "repetition_penalty": [1.0, 1.0, 1.5, 1.0, 1.0, 1.0, 1.2, 1.0, 1.0],
        "frequency_penalty": [0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0, 0.0],
        "min_tokens": [0, 0, 0, 0, 9, 0, 0, 0, 0],
        "regex": [None, None, None, None, None, "[xyz]{4,30}", None, None, None],
    },
}
ROLLOUT: dict[str, Any] = {
    "dtype": "float32",
    "prompt_length": 256,
    "response_length": 64,
    "max_model_len": 2000,
}


def started(**rollout: Any) -> InferenceEngine:
    return InferenceEngine(model_path=str(tiny_model()), rollout=ROLLOUT | rollout)


@pytest.fixture(scope="module")
def both() -> Iterator[Engines]:
    with contextlib.ExitStack() as stack:
        engines = []
        for serial in (False, True):
            engine = started(
                max_num_seqs=6,  # fewer than the prompts: rows begin beside rows that run
                enforce_eager=True,
                free_cache_engine=True,
                engine_kwargs={"sglang": {**LORA, "disable_overlap_schedule": serial}},
            )
            engines.append(stack.enter_context(engine))
            assert engine.rollout._engine.server_args.disable_overlap_schedule is serial
        yield engines[0], engines[1]


@pytest.fixture(scope="module")
def hf() -> Iterator[InferenceEngine]:
    with started(name="hf") as engine:
        yield engine


def assert_same(engines: Engines, prompts: object = PROMPTS, **keywords: Any) -> None:
    ours, expected = (engine.generate(prompts, **keywords) for engine in engines)
    assert ours.token_ids == expected.token_ids
    for one, other in zip(ours, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert (one.finish_reason, one.completion) == (other.finish_reason, other.completion)
        assert [*one.forced_at] == [*other.forced_at]
        assert one.sampling_mask == other.sampling_mask
        for field in ("top_logprobs", "top_prompt_logprobs"):
            likeliest = [getattr(row, field) or [] for row in (one, other)]
            for mine, its in zip(*likeliest, strict=True):
                assert mine == pytest.approx(its, abs=1e-4)


@pytest.mark.parametrize("keywords", KEYWORDS)
def test_overlapped_answers_are_those_of_the_serial_schedule(both: Engines, keywords: str) -> None:
    assert_same(both, **KEYWORDS[keywords])


@pytest.mark.parametrize("number", range(6))
def test_any_keywords_together_give_the_rows_of_hf_in_a_batch_alone_and_streamed(
    number: int, both: Engines, hf: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for engine in (*both, hf):
        model = dataclasses.replace(engine.model, thought_marks=MARKS)
        monkeypatch.setattr(engine, "model", model)
    keywords = drawn(number, len(PROMPTS))
    for engine in both:
        assert_same((engine, hf), **keywords)
    expected = hf.generate(PROMPTS, **keywords)
    for place in (number % len(PROMPTS), (number + 4) % len(PROMPTS)):
        own, row = of_prompt(keywords, place), expected[place]
        for engine in (*both, hf):
            [alone] = engine.generate(PROMPTS[place], **own)
            assert (alone.token_ids, alone.completion) == (row.token_ids, row.completion)
            streamed = {name: own[name] for name in own if name != "prompt_logprobs"}
            chunks = [*engine.stream(PROMPTS[place], **streamed)]
            assert [token for chunk in chunks for token in chunk.token_ids] == row.token_ids
            assert "".join(chunk.text for chunk in chunks) == row.completion
            assert chunks[-1].finish_reason == row.finish_reason


def test_overlapped_samples_of_a_prompt_compute_it_once(both: Engines) -> None:
    prompts = as_ids([[*range(first, first + 48)] for first in (40, 120, 200, 280)])
    output = both[0].generate(prompts, n=8, temperature=1.0, max_tokens=5, ignore_eos=True)
    assert sum(about["cached_tokens"] for about in output.metadata) == 4 * 7 * 47


def test_overlapped_rows_have_their_adapters(both: Engines, tmp_path: Path) -> None:
    folder = adapter(tiny_model(), tmp_path / "adapter", scale=0.4)
    plain = both[0].generate(PROMPTS, **GREEDY).token_ids
    for engine in both:
        engine.load_adapter("one", folder)
    names = ["one", None] * 4 + ["one"]
    assert_same(both, adapter=names, **GREEDY)
    answers = both[0].generate(PROMPTS, adapter=names, **GREEDY).token_ids
    assert [row != plain[at] for at, row in enumerate(answers)] == [*map(bool, names)]
    for engine in both:
        engine.unload_adapter("one")


@pytest.mark.parametrize("penalty", [1.0, 1.3])
def test_overlapped_stream_that_its_reader_leaves_ends_and_disturbs_no_row_beside_it(
    both: Engines, penalty: float
) -> None:
    overlapped, serial = both
    rows = {**SEEDED, "max_tokens": 64, "repetition_penalty": penalty}
    expected = serial.generate(PROMPTS, **rows).token_ids
    left = overlapped.stream("Hi", max_tokens=1700, ignore_eos=True, repetition_penalty=penalty)
    next(left)
    beside = begun(lambda: overlapped.generate(PROMPTS, **rows).token_ids)
    assert until(lambda: in_flight(overlapped) > 1, 60)
    left.close()
    assert beside.result(60) == expected
    assert until(lambda: not in_flight(overlapped), 60)


def test_overlapped_rows_stand_still_and_go_on(both: Engines) -> None:
    """Between any two steps; and recomputed, here by the weights that they had."""
    overlapped, serial = both
    weights = loaded(tiny_model()).state_dict()
    expected = serial.generate(PROMPTS, **SEEDED).token_ids
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


def test_overlapped_engine_takes_new_weights_and_sleeps(both: Engines) -> None:
    overlapped, _ = both
    old, model = overlapped.generate(PROMPTS, **GREEDY).token_ids, loaded(tiny_model())
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(model, seed=3)
    for engine in both:
        engine.update_weights(model)
    assert_same(both, **GREEDY)
    assert overlapped.generate(PROMPTS, **GREEDY).token_ids != old
    for engine in both:
        engine.update_weights(weights)
    overlapped.sleep()
    overlapped.wake_up()
    for engine in both:
        assert engine.generate(PROMPTS, **GREEDY).token_ids == old
