"""A row says what was generated and why it ended, whatever the model's EOS and pad are.

The oracle is a greedy run past every EOS: what a row must be under any EOS, stop ids and max_tokens
is a cut of it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from _inf.request.prompts import object_array
from _inf.runtime.extras import has_verl
from inf import GenerationOutput, InferenceEngine
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import Transformers, assert_greedy, until
from tests.support.tiny import END_OF_TEXT, IM_END, tiny_model

TOKENS = 80
PROMPT, RESPONSE = 512, 128
ROLLOUT = {
    "dtype": "float32",
    "prompt_length": PROMPT,
    "response_length": RESPONSE,
    "enforce_eager": True,
    "val_kwargs": {"temperature": 0.0},
}
# Beside their EOS and pad, the variants differ in what must not change an answer either.
UNCACHED = {"enable_prefix_caching": False} if has_verl() else {}
UNCHUNKED = {"enable_chunked_prefill": False} if has_verl() else {}
VARIANTS = {
    "pad is EOS": (
        {"pad": "eos"},
        {**ROLLOUT, "max_num_batched_tokens": 128, **UNCACHED},
    ),
    "llama, pad is one of several EOS": (
        {"kind": "llama", "bos": True, "pad": "eos", "eos": (END_OF_TEXT, IM_END, "d")},
        {**ROLLOUT, **UNCHUNKED},
    ),
}


@dataclasses.dataclass(frozen=True)
class Served:
    """An engine, what its model is and says when no EOS stops it."""

    engine: InferenceEngine
    reference: Transformers
    eos: frozenset[int]
    prompts: list[list[int]]
    free: GenerationOutput

    def token(self, *, seen: int) -> int:
        """An ordinary token that some `seen` of the free answers hold, none as its first."""
        rows = self.free.token_ids
        first = {answer[0] for answer in rows}
        counts = Counter(token for answer in rows for token in set(answer))
        usable = [t for t in counts if t > 3 and t not in self.eos and t not in first]
        return min(usable, key=lambda token: abs(counts[token] - seen))


def spread(engine: InferenceEngine) -> list[list[int]]:
    """Prompts of all lengths; some begin with, or are nothing but, pad and EOS."""
    pad, eos = engine.tokenizer.pad_token_id, engine.tokenizer.eos_token_id
    special = [[pad], [pad, pad, 50], [eos, pad, eos, 60], [eos]]
    return special + token_prompts(36, 150, seed=20)


@pytest.fixture(scope="module", params=["pad and EOS apart", *VARIANTS])
def served(request):
    """One engine after the other; the first is everybody's."""
    if request.param not in VARIANTS:
        yield listen(request.getfixturevalue("tiny"), (IM_END,))
        return
    model, rollout = VARIANTS[request.param]
    with InferenceEngine(model_path=str(tiny_model(**model)), rollout=rollout) as engine:
        yield listen(engine, model.get("eos", (IM_END,)))


def listen(engine: InferenceEngine, ends: Sequence[str]) -> Served:
    """Let it speak past its EOS once."""
    prompts = spread(engine)
    return Served(
        engine=engine,
        reference=dataclasses.replace(Transformers.of(engine.model_folder), ends=frozenset()),
        eos=frozenset(engine.tokenizer.convert_tokens_to_ids(list(ends))),
        prompts=prompts,
        free=engine.generate(as_ids(prompts), temperature=0.0, max_tokens=TOKENS, ignore_eos=True),
    )


def assert_cut(
    served: Served, output: GenerationOutput, ends: Collection[int], max_tokens: Sequence[int]
) -> Counter[int | None]:
    """Each row is the free answer up to the first of `ends`, or to its `max_tokens`; how many by
    what.

    Also holds each row to `assert_true`.
    """
    assert_true(served.engine, output, [len(prompt) for prompt in served.prompts])
    for row, free, most in zip(output, served.free, max_tokens, strict=True):
        expected = until(free.token_ids[:most], ends)
        matched = expected[-1] if expected[-1] in ends else None
        assert row.token_ids == expected
        assert row.metadata["matched_stop"] == matched
        assert row.metadata["finish_reason"] == ("length" if matched is None else "stop")
        spoken = expected if matched is None else expected[:-1]
        text = served.engine.tokenizer.decode(
            spoken, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert row.completion == text
    return Counter(row["matched_stop"] for row in output.metadata)


def assert_true(
    engine: InferenceEngine, output: GenerationOutput, lengths: Sequence[int], n: int = 1
) -> None:
    """What a row's counts, mask and padded ids say agrees with its tokens."""
    assert len(output) == len(lengths) * n
    longest = max(len(ids) for ids in output.token_ids)
    for index, row in enumerate(output):
        size, metadata = len(row.token_ids), row.metadata
        width = len(metadata["response_ids"])
        assert width == max(engine.config.rollout.response_length, longest)
        assert metadata["response_ids"][:size] == row.token_ids
        assert set(metadata["response_ids"][size:]) <= {engine.tokenizer.pad_token_id}
        assert metadata["response_mask"] == [1] * size + [0] * (width - size)
        assert metadata["completion_tokens"] == size == len(row.logprobs)
        assert metadata["prompt_tokens"] == lengths[index // n]
        if engine.config.rollout.name == "hf":  # shares whole prompts, or nothing of them
            assert metadata["cached_tokens"] in (0, metadata["prompt_tokens"])
        else:
            assert 0 <= metadata["cached_tokens"] < metadata["prompt_tokens"]
        assert (metadata["prompt_index"], metadata["sample_index"]) == divmod(index, n)
        assert metadata["cumulative_logprob"] == pytest.approx(sum(row.logprobs))
        assert metadata["weight_version"] == 0


# How rows end.


def test_eos_ids_answers_and_logprobs_are_those_of_transformers(served):
    assert served.engine._backend.model.eos_token_ids == served.eos
    assert_greedy(served.reference, served.prompts, served.free, TOKENS)


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("most", [1, TOKENS, None])
@pytest.mark.parametrize("stops", ["none", "two", "an EOS"])
def test_row_is_the_free_answer_up_to_what_ends_it(served, stops, most, ignore_eos):
    """most: None is for each row the place at which it stops by itself."""
    two = [served.token(seen=8), served.token(seen=15)]
    ids = {"none": [], "two": two, "an EOS": [max(served.eos)]}[stops]
    ends = {*ids} if ignore_eos else {*ids, *served.eos}
    max_tokens = [most or len(until(row.token_ids, ends)) for row in served.free]
    output = served.engine.generate(
        as_ids(served.prompts),
        temperature=0.0,
        max_tokens=max_tokens,
        stop_token_ids=ids,
        ignore_eos=ignore_eos,
    )
    reasons = assert_cut(served, output, ends, max_tokens)
    assert most == 1 or {None, *(ids or ends)} <= set(reasons)


# Samples, tensors.


def test_samples_of_a_prompt_stand_together_and_each_ends_for_itself(served):
    prompts = served.prompts[:12]
    output = served.engine.generate(as_ids(prompts), n=5, temperature=1.0, max_tokens=64)
    assert_true(served.engine, output, [len(prompt) for prompt in prompts], n=5)
    for row in output:
        ids, matched = row.token_ids, row.metadata["matched_stop"]
        assert not served.eos & set(ids[:-1])
        stopped = row.metadata["finish_reason"] == "stop"
        assert matched == (ids[-1] if stopped else None) and (stopped or len(ids) == 64)
        assert stopped == (ids[-1] in served.eos)
    assert {row.finish_reason for row in output} == {"stop", "length"}
    assert len({tuple(answer) for answer in output.token_ids}) > 50


def raw_batch(engine: InferenceEngine, prompts: list[list[int]], **params: Any) -> Any:
    """The `DataProto` that a call's rows become."""
    call = engine._prepare([{"prompt_token_ids": ids} for ids in prompts], params)
    from _inf.backends.verl.backend import data_proto  # needs the engine's environment

    return data_proto(call.requests(), engine._backend.model)


@pytest.mark.verl
def test_tensors_of_a_trainers_own_call_are_right(served):
    """Without parameters of each row, and with the columns of verl's `RLHFDataset`."""
    engine, prompts, n = served.engine, served.prompts[:20], 2
    batch = raw_batch(engine, prompts, n=n)
    del batch.non_tensor_batch["sampling_params"]
    batch.meta_info["do_sample"] = False
    for name in ("tools_kwargs", "interaction_kwargs"):
        batch.non_tensor_batch[name] = object_array([{}] * len(batch))
    asked = [{"role": "user", "content": "?"}]
    batch.non_tensor_batch["raw_prompt"] = object_array([asked] * len(batch))
    answered = engine.rollout.generate_sequences(batch, max_new_tokens=TOKENS).batch
    width, pad = max(map(len, prompts)), engine.tokenizer.pad_token_id
    for row in range(len(prompts) * n):
        prompt = prompts[row // n]
        answer = until(served.free.token_ids[row // n], served.eos)
        before, after = width - len(prompt), RESPONSE - len(answer)
        whole = [pad] * before + prompt + answer + [pad] * after
        mask = [0] * before + [1] * (len(prompt) + len(answer)) + [0] * after
        places = [*([0] * before), *range(len(prompt) + RESPONSE)]
        expected = {"input_ids": whole, "attention_mask": mask, "position_ids": places}
        expected |= {"prompts": whole[:width], "responses": whole[width:]}
        expected["response_mask"] = mask[width:]
        assert {name: answered[name][row].tolist() for name in expected} == expected


@pytest.mark.verl
def test_trainers_validation_samples_as_val_kwargs_say(served):
    engine = served.engine
    for validate in (True, False):
        batch = raw_batch(engine, served.prompts[:5])
        del batch.non_tensor_batch["sampling_params"]
        batch.meta_info |= {"validate": validate, "do_sample": True}
        answered = engine.rollout.generate_sequences(batch, max_new_tokens=TOKENS)
        rows = [row.token_ids for row in answered.non_tensor_batch["rows"]]
        greedy = [until(ids, served.eos) for ids in served.free.token_ids[:5]]
        says_greedy = engine.config.rollout.val_kwargs.temperature == 0  # not the session's engine
        assert (rows == greedy) is (validate and says_greedy)


# Limits.


def test_a_prompt_that_fills_the_limit_gets_its_whole_answer(served):
    sizes = [(PROMPT, RESPONSE), (PROMPT - 1, RESPONSE), (10, PROMPT + RESPONSE - 10)]
    for seed, (length, max_tokens) in enumerate(sizes):
        prompts = token_prompts(2, length, seed=30 + seed, shortest=length)
        output = served.engine.generate(
            as_ids(prompts), temperature=0.0, max_tokens=max_tokens, ignore_eos=True
        )
        assert_true(served.engine, output, [length] * 2)
        assert [row.finish_reason for row in output] == ["length"] * 2
        assert_greedy(served.reference, prompts, output, max_tokens)
