"""One contract for every backend: the same calls on verl's rollout, on Transformers, and on a
server of token ids, which serves the first of them.

All have the tiny model in float32, whose greedy answers wander, so equal ids mean something. What
only one backend has is at the end; what it refuses, it refuses by name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any

import pytest
import torch

import inf
from _inf.backends.hf import decoding
from _inf.errors import RequestFailure
from _inf.types import ThoughtMarks
from inf import ConfigError, EngineDeadError, GenerationTimeout, PromptError
from tests.support.architectures import architecture
from tests.support.engines import started
from tests.support.keyword_sets import MARKS as ALWAYS
from tests.support.keyword_sets import drawn, of_prompt
from tests.support.pages import blocks
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import (
    WITHIN,
    Transformers,
    assert_greedy,
    assert_same_answers,
    assert_same_rows,
)
from tests.support.refusals import refused
from tests.support.tiny import VOCABULARY, tiny_model
from tests.support.tool_calling import CALCULATOR

PROMPTS = token_prompts(12, 200, seed=41)
GREEDY = {"temperature": 0, "max_tokens": 32}
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}


def test_python_of_the_page_on_generate_runs_but_for_what_a_server_does_not_offer(
    remote, tmp_path, monkeypatch
):
    """On an engine of its own it runs in `test_pages.py`."""
    monkeypatch.setattr(inf, "InferenceEngine", lambda **_: remote)
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for program in blocks("docs/generate.md", "python"):
        exec(compile(program, "docs/generate.md", "exec"), names)


# All give the same answers.


@pytest.mark.parametrize("number", range(4))
def test_any_keywords_together_give_the_rows_of_hf_in_a_batch_alone_and_streamed(
    number, backend, tiny, hf, monkeypatch
):
    for engine in (tiny, hf, backend):  # the server's too
        model = dataclasses.replace(engine.model, thought_marks=ALWAYS)
        monkeypatch.setattr(engine, "model", model)
    prompts = as_ids(PROMPTS[:9])
    keywords = drawn(number, len(prompts))
    if "thinking_token_budget" not in backend.supports:  # its server has no `reasoning_parser`
        keywords.pop("thinking_token_budget", None)
    expected = hf.generate(prompts, **keywords)
    assert_same_rows(backend.generate(prompts, **keywords), expected, within=1e-4)
    for place in (number, number + 4):
        own, row = of_prompt(keywords, place), expected[place]
        assert_same_rows(backend.generate(prompts[place], **own), [row], within=1e-4)
        streamed = {name: own[name] for name in own if name != "prompt_logprobs"}
        chunks = [*backend.stream(prompts[place], **streamed)]
        assert [token for chunk in chunks for token in chunk.token_ids] == row.token_ids
        assert "".join(chunk.text for chunk in chunks) == row.completion
        assert chunks[-1].finish_reason == row.finish_reason


def test_of_several_stop_strings_the_first_to_come_wins_and_an_emoji_is_one(backend):
    said = "Hello 😀 there"  # a regex makes the model say it
    for stops, matched in ((["there", "llo", "never this"], "llo"), ("😀", "😀")):
        [row] = backend.generate("Repeat", regex=said, stop=stops, max_tokens=40)
        assert row.completion == said[: said.index(matched)]
        assert row.metadata["matched_stop"] == matched
        kept = {"stop": stops, "max_tokens": 40, "include_stop_str_in_output": True}
        [whole] = backend.generate("Repeat", regex=said, **kept)
        assert whole.completion == row.completion + matched


def test_likeliest_tokens_of_prompts_and_answers_are_transformers(backend, transformers):
    """Prompts from the cache too; SGLang names the last id of a vocabulary 0 in its answers."""
    prompts = [[*ids, VOCABULARY - 1, 7] for ids in token_prompts(4, 60, seed=87)]
    temperatures = [0.7, 0.0, 1.3, 0.0]
    backend.generate(as_ids(prompts), max_tokens=1)
    output = backend.generate(
        as_ids(prompts),
        temperature=temperatures,
        max_tokens=8,
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=4,
    )
    for ids, temperature, row in zip(prompts, temperatures, output, strict=True):
        table = transformers.logits(ids[:1], ids[1:]).log_softmax(-1)
        assert row.top_prompt_logprobs and row.prompt_logprobs and row.token_ids
        assert row.top_prompt_logprobs[0] is row.prompt_logprobs[0] is None
        assert_likeliest(table, ids[1:], 4, row.top_prompt_logprobs[1:], row.prompt_logprobs[1:])
        table = (transformers.logits(ids, row.token_ids) / (temperature or 1.0)).log_softmax(-1)
        assert_likeliest(table, row.token_ids, 2, row.top_logprobs, row.logprobs)
    plain = backend.generate("a", max_tokens=1, prompt_logprobs=True)
    assert plain.top_prompt_logprobs is plain.top_logprobs is None
    with refused(ConfigError, key="logprobs"):
        backend.generate("a", logprobs=VOCABULARY + 1)


def test_row_without_a_token_left_fails_by_the_name_of_what_rules_them_out(local):
    ids = local.tokenizer("aa", add_special_tokens=False)["input_ids"]
    assert len(ids) == 2 and ids[0] == ids[1]
    with refused(RequestFailure, "no token left for token 1: allowed_token_ids, bad_words"):
        local.generate("x", allowed_token_ids=ids[:1], bad_words=["aa"], max_tokens=5)
    asked = {"max_tokens": 5, "prompt_logprobs": 2, "logprobs": 2}
    words = {"allowed_token_ids": [ids[:1], None], "bad_words": [["aa"], None]}
    with pytest.warns(UserWarning, match="rows: 1 of 2 failed; the first is row 0: .* left"):
        failed, other = local.generate(["x", "y"], on_error="row", **words, **asked)
    assert (failed.finish_reason, failed.token_ids, failed.top_logprobs) == ("abort", [], None)
    assert "no token left" in failed.metadata["error"] and failed.prompt_tokens > 0
    [alone] = local.generate("y", **asked)
    assert other.token_ids == alone.token_ids
    assert other.logprobs == pytest.approx(alone.logprobs, abs=WITHIN)


def test_refused_prompts_are_rows_and_the_others_are_as_without_them(backend):
    good, wrong = as_ids(PROMPTS[:2]), {"prompt_token_ids": [VOCABULARY]}
    how = {"max_tokens": 6, "n": 2, "temperature": 1.0}
    for prompt in (wrong, {"prompt_token_ids": [5] * 600}):
        with refused(PromptError, "^prompt 1", index=1):
            backend.generate([good[0], prompt], **how)
    with pytest.warns(UserWarning, match="rows: 4 of 8 failed; the first is row 2: PromptError"):
        output = backend.generate(
            [good[0], wrong, good[1], 7], on_error="row", seed=[1, 2, 3, 4], **how
        )
    for row in [*output[2:4], *output[6:]]:
        assert (row.finish_reason, row.token_ids, row.logprobs) == ("abort", [], [])
        assert f"prompt {row.prompt_index}" in row.metadata["error"]
    assert [row.prompt_index for row in output] == [0, 0, 1, 1, 2, 2, 3, 3]
    alone = backend.generate(good, seed=[1, 3], **how)
    assert [row.token_ids for row in [*output[:2], *output[4:6]]] == alone.token_ids
    assert json.dumps(output.to_dict())
    with pytest.warns(UserWarning, match="rows: 1 of 2 failed; the first is row 1"):
        asked = ["a", {"prompt_token_ids": [5]}]
        _, failed = backend.generate(asked, tools=[CALCULATOR], on_error="row", max_tokens=4)
    assert failed.messages == [] and "tools and interactions add" in failed.metadata["error"]


OPENED = ThoughtMarks([7], [300, 301], unopened=False)
BUDGETED = {"temperature": 1.0, "ignore_eos": True, "max_tokens": 8, "logprobs": 2}


def test_end_of_a_thought_is_forced_after_its_budget_and_no_token_of_it_counts_as_sampled(
    local, monkeypatch
):
    prompts, seeds = as_ids([[20, 7], [20, 7, 9], [20], [21, 7]]), {"seed": [1, 2, 3, 4]}
    asked = {"thinking_token_budget": [3, 1, 2, None], **seeds, **BUDGETED}
    with refused(ConfigError, "thinking_token_budget: .* set reasoning_parser"):
        local.generate(prompts, **asked)
    monkeypatch.setattr(local, "model", dataclasses.replace(local.model, thought_marks=OPENED))
    output = local.generate(prompts, **asked)
    assert not output[2].forced_at and not output[3].forced_at
    for row, start in zip(output[:2], (3, 0), strict=True):
        ids, forced = row.token_ids, [start, start + 1]
        assert row.metadata["forced_at"] == forced and ids[start : start + 2] == OPENED.end
        assert [row.top_logprobs[place] for place in forced] == [{300: 0.0}, {301: 0.0}]
        mask = row.metadata["response_mask"][: len(ids)]
        assert [place for place, bit in enumerate(mask) if not bit] == forced
        [scores] = local.get_logprobs({"prompt_token_ids": row.prompt_token_ids}, [ids])
        for place in forced:
            scores[place] = 0.0
        assert row.logprobs == pytest.approx(scores, abs=WITHIN)
    *_, last = local.stream(prompts[0], thinking_token_budget=3, seed=1, **BUDGETED)
    assert last.metadata["forced_at"] == [3, 4]


def test_row_that_repeats_itself_ends_there_and_others_do_not(backend):
    prompts, how = as_ids(PROMPTS[:4]), {"max_tokens": 12, "ignore_eos": True}
    detection = [
        {"max_pattern_size": 1, "min_count": 3},
        {"max_pattern_size": 4, "min_pattern_size": 2, "min_count": 2},
        {"max_pattern_size": 1, "min_count": 20},
        None,
    ]
    only = {"allowed_token_ids": [5], "repetition_detection": detection}
    output = backend.generate(prompts, **only, **how)
    ended = [(row.finish_reason, row.completion_tokens) for row in output]
    assert ended == [("repetition", 3), ("repetition", 4), ("length", 12), ("length", 12)]
    late = {"allowed_token_ids": [5], "repetition_detection": detection[0], "min_tokens": 7}
    *_, last = backend.stream(prompts[0], **late, **how)
    assert (last.finish_reason, last.metadata["completion_tokens"]) == ("repetition", 7)


def assert_likeliest(table: torch.Tensor, ids: list[int], k: int, tops: Any, logprobs: Any) -> None:
    """Each dict has the `k` likeliest of its row of log probs, and then the given id; `logprobs`
    are those of the ids."""
    for row, token, top, logprob in zip(table, ids, tops, logprobs, strict=True):
        expected = list(dict.fromkeys([*row.topk(k).indices.tolist(), token]))
        assert list(top) == expected and top[token] == logprob
        assert list(top.values()) == pytest.approx(row[expected].tolist(), abs=WITHIN)


def test_likeliest_tokens_of_a_score_are_those_of_its_logits(backend, transformers):
    asked, prompts = [*PROMPTS[:5], PROMPTS[4]], as_ids([*PROMPTS[:5], PROMPTS[4]])
    [greedy] = transformers.greedy(PROMPTS[4:5], 32)
    left = [*greedy[:5], 7]  # once the greedy path
    left += transformers.greedy([PROMPTS[4] + left], 4)[0]
    answers = [[VOCABULARY - 1, 5], PROMPTS[6][:30], [], [9], greedy, left]
    plain, scored = (backend.score(prompts, answers, top_logprobs=k) for k in (None, 3))
    for prompt, ids, own, score in zip(asked, answers, plain, scored, strict=True):
        table = transformers.logits(prompt, ids).log_softmax(-1) if ids else torch.zeros(0, 1)
        assert own.top_logprobs is None and own.token_ids == score.token_ids == ids
        assert score.is_greedy == own.is_greedy == (table.argmax(-1).tolist() == ids)
        assert own.logprobs == pytest.approx(score.logprobs, abs=WITHIN)
        assert_likeliest(table, ids, 3, score.top_logprobs, score.logprobs)
    if backend.config.rollout.name == "openai":  # a server lists fewer
        with refused(ConfigError, key="prompt_logprobs"):
            backend.score(prompts[0], [[5]], top_logprobs=VOCABULARY)
        return
    [whole] = backend.score(prompts[0], [[5]], top_logprobs=VOCABULARY)
    assert whole.top_logprobs and len(whole.top_logprobs[0]) == VOCABULARY
    for value in (VOCABULARY + 1, 0, True):
        with refused(ConfigError, key="top_logprobs"):
            backend.score([], [], top_logprobs=value)


# Each of them keeps the contract.


def test_answers_follow_their_grammar_beside_free_rows(backend):
    output = backend.generate(
        ["a", "b", "c"], json_schema=[CITY, None, CITY], temperature=1.0, seed=5, max_tokens=60
    )
    for row in (output[0], output[2]):
        assert json.loads(row.completion)["city"] in ("Rome", "Oslo")
        assert row.metadata["finish_reason"] == "stop"


def test_empty_batch_is_an_empty_output(backend):
    assert len(backend.generate([])) == 0
    assert "score" not in backend.supports or backend.score([], []) == []


def test_timeout_ends_a_call_and_the_engine_goes_on(backend):
    with pytest.raises(GenerationTimeout):
        backend.generate(as_ids(PROMPTS * 4), max_tokens=128, ignore_eos=True, timeout=0.05)
    assert len(backend.generate("Hi", **GREEDY)) == 1


def test_async_calls_run_together_and_can_be_cancelled(backend):
    """In one event loop after another, which they leave to others while they wait."""
    alone = [backend.generate(prompt, **GREEDY).token_ids[0] for prompt in as_ids(PROMPTS[:4])]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    async def calls() -> list[list[int]]:
        counting = asyncio.ensure_future(count())
        assert backend.generate(as_ids(PROMPTS[:4]), **GREEDY).token_ids == alone
        long = asyncio.ensure_future(
            backend.agenerate(as_ids(PROMPTS), max_tokens=400, ignore_eos=True, temperature=0)
        )
        outputs = await asyncio.gather(
            *(backend.agenerate(prompt, **GREEDY) for prompt in as_ids(PROMPTS[:4]))
        )
        long.cancel()
        with pytest.raises(asyncio.CancelledError):
            await long
        chunks = [chunk async for chunk in backend.astream(as_ids(PROMPTS[:1])[0], **GREEDY)]
        assert [token for chunk in chunks for token in chunk.token_ids] == alone[0]
        counting.cancel()
        return [output.token_ids[0] for output in outputs]

    assert [asyncio.run(calls()) for _ in range(2)] == [alone] * 2
    assert turns > 10


# On Transformers alone.


def test_greedy_answers_are_those_of_transformers_generate(hf, transformers):
    """What other tests compare engines with; all architectures are in `test_architectures.py`."""
    ids = token_prompts(16, 400, seed=1)
    output = hf.generate(as_ids(ids), **GREEDY)
    assert_same_answers(transformers, ids, output.token_ids, transformers.greedy(ids, 32))
    assert_greedy(transformers, ids, output, 32)


def test_logits_are_those_of_the_model_padded_with_nan(hf, transformers):
    answers = [PROMPTS[0][:3], [], PROMPTS[1][:7]]
    logits = hf.get_logits(as_ids(PROMPTS[:3]), answers)
    assert logits.shape == (3, 7, VOCABULARY) and logits.dtype == torch.float32
    for row, answer in enumerate(answers):
        assert torch.isnan(logits[row, len(answer) :]).all()
        if answer:
            expected = transformers.logits(PROMPTS[row], answer)
            assert torch.allclose(logits[row, : len(answer)], expected, atol=WITHIN)
    logprobs = hf.get_logprobs(as_ids(PROMPTS[2:3]), [answers[2]])[0]
    table = torch.log_softmax(logits[2], -1)[torch.arange(7), answers[2]]
    assert logprobs == pytest.approx(table.tolist(), abs=1e-5)


def test_new_weights_are_served_whole_or_not_at_all():
    """That new ones are exact: `test_architectures.py`, `test_running_updates.py`."""
    with started(name="hf") as engine:
        before = engine.generate(as_ids(PROMPTS), **GREEDY).token_ids
        state = Transformers.of(tiny_model(seed=5)).model.state_dict()
        with refused(ConfigError, "lm_head.weight", key="weights"):
            engine.update_weights({**state, "lm_head.weight": torch.zeros(3)})
        assert engine.generate(as_ids(PROMPTS), **GREEDY).token_ids == before
        half = {name: tensor.as_subclass(Unreadable) for name, tensor in state.items()}
        with pytest.raises(EngineDeadError, match="halfway.*out of memory.*restart"):
            engine.update_weights(half)
        assert engine.dead
        engine.restart()
        assert engine.generate(as_ids(PROMPTS), **GREEDY).token_ids == before


class Unreadable(torch.Tensor):
    """A part of a tensor whose other parts do not come."""

    def full_tensor(self) -> torch.Tensor:
        raise RuntimeError("out of memory")


def test_failure_of_one_step_is_an_error_of_its_calls_only(hf, monkeypatch):
    model = hf._backend.forward.model  # type: ignore
    with monkeypatch.context() as patch:
        patch.setattr(model, "forward", lambda **_: (_ for _ in ()).throw(MemoryError("full")))
        with pytest.raises(Exception, match="The engine aborted the request: MemoryError: full"):
            hf.generate("a")
    assert len(hf.generate("a", **GREEDY)) == 1


def test_failure_between_two_steps_ends_the_engine_and_all_calls_say_so(monkeypatch):
    def full(*_: object) -> None:
        raise MemoryError("full")

    with started(name="hf") as engine:
        stream = engine.stream("a", max_tokens=500, ignore_eos=True, timeout=60)
        next(stream)
        monkeypatch.setattr(decoding.Decoder, "_admitted", full)
        for call in (
            lambda: engine.generate("a", ignore_eos=True, timeout=60),
            lambda: list(stream),
        ):
            with pytest.raises(EngineDeadError, match="decoding ended with MemoryError: full"):
                call()
        assert engine.dead
        monkeypatch.undo()
        engine.restart()
        assert len(engine.generate("a", **GREEDY)) == 1


def test_longer_rows_than_the_models_context_are_refused():
    for model, most in ((tiny_model(), 4096), (architecture("llama-rope-llama3"), 1024)):
        with refused(ConfigError, str(most), key="rollout.max_model_len"):
            started(model, name="hf", max_model_len=most + 1)


def test_row_beyond_dynamic_ntks_context_does_not_depend_on_the_rows_before_it():
    """Transformers' own factors stay those of the longest row that there ever was."""
    short, long = (token_prompts(1, size, size, shortest=size)[0] for size in (1100, 1500))
    with started(architecture("llama-rope-dynamic"), name="hf", max_model_len=2048) as engine:
        alone, _, again = (
            engine.get_logprobs({"prompt_token_ids": ids[:-8]}, [ids[-8:]])[0]
            for ids in (short, long, short)
        )
    assert again == pytest.approx(alone, abs=1e-4)


def test_mixed_rows_in_one_call_share_their_passes_through_the_model(hf):
    prompts = as_ids(token_prompts(24, 480, seed=17))
    limits = [4 + 5 * row for row in range(24)]
    passes: list[int] = []
    model = hf._backend.forward.model  # type: ignore
    hook = model.register_forward_hook(lambda *_: passes.append(1))
    output = hf.generate(prompts, temperature=0, max_tokens=limits, ignore_eos=True)
    hook.remove()
    assert [len(ids) for ids in output.token_ids] == limits
    assert 3 * len(passes) < sum(limits)  # one by one there is a pass for each token
