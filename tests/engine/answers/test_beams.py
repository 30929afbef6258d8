"""`num_beams` on the backend `hf`: the beams are those of Transformers' own beam search."""

from __future__ import annotations

import asyncio
import dataclasses
import time

import pytest
import torch

from inf import ConfigError, InferenceEngine
from tests.support.engines import started
from tests.support.prompts import as_ids, token_prompts
from tests.support.reference import WITHIN, logprobs
from tests.support.refusals import refused
from tests.support.scripts import until
from tests.support.tiny import VOCABULARY, save_tiny

PROMPTS = token_prompts(6, 120, seed=51)
TOKENS = 18


@pytest.mark.parametrize(("beams", "n"), [(2, 1), (7, 7)])
def test_rows_are_the_best_beams_of_transformers_in_their_order(hf, transformers, beams, n):
    output = hf.generate(as_ids(PROMPTS), num_beams=beams, n=n, max_tokens=TOKENS)
    own = {"num_beams": beams, "num_return_sequences": n}
    assert output.token_ids == transformers.greedy(PROMPTS, TOKENS, **own)
    for row, ids in enumerate(output.token_ids):
        logits = transformers.logits(PROMPTS[row // n], ids)
        assert output.logprobs[row] == pytest.approx(logprobs(logits, ids), abs=WITHIN)
    means = [sum(row.logprobs) / len(row.logprobs) for row in output]
    for start in range(0, len(means), n):
        assert means[start : start + n] == sorted(means[start : start + n], reverse=True)
    assert [row["sample_index"] for row in output.metadata] == [*range(n)] * len(PROMPTS)
    greedy = hf.generate(as_ids(PROMPTS), temperature=0, max_tokens=TOKENS)
    assert output.token_ids[::n] != greedy.token_ids


def test_stop_ids_min_tokens_and_repetition_penalty_are_those_of_transformers(hf, transformers):
    free = hf.generate(as_ids(PROMPTS), num_beams=3, max_tokens=TOKENS, ignore_eos=True)
    stops = [ids[12] for ids in free.token_ids[:3]]
    params = {"min_tokens": 8, "repetition_penalty": 1.2}
    output = hf.generate(
        as_ids(PROMPTS), num_beams=3, n=2, max_tokens=TOKENS, stop_token_ids=stops, **params
    )
    ends = transformers.ends | set(stops)
    theirs = dataclasses.replace(transformers, ends=ends).greedy(
        PROMPTS,
        TOKENS,
        num_beams=3,
        num_return_sequences=2,
        eos_token_id=sorted(ends),
        min_new_tokens=8,
        repetition_penalty=1.2,
    )
    assert output.token_ids == theirs
    reasons = [row["finish_reason"] for row in output.metadata]
    assert set(reasons) == {"stop", "length"}
    for row in output:
        ended = row.token_ids[-1] in ends
        assert row.metadata["matched_stop"] == (row.token_ids[-1] if ended else None)


def test_beams_are_the_same_alone_beside_others_and_with_other_limits(hf):
    limits = [3, 9, 18, 1, 18, 18]
    together = hf.generate(as_ids(PROMPTS), num_beams=4, n=2, max_tokens=limits)
    for row in (0, 2, 3):
        alone = hf.generate(as_ids(PROMPTS)[row], num_beams=4, max_tokens=limits[row])
        assert alone.token_ids[0] == together.token_ids[2 * row]


def test_top_and_prompt_logprobs_are_given_for_beams_too(hf, transformers):
    params = {"max_tokens": 6, "logprobs": 2, "prompt_logprobs": True}
    output = hf.generate(as_ids(PROMPTS[:2]), num_beams=3, n=2, **params)
    plain = hf.generate(as_ids(PROMPTS[:2]), temperature=0, n=1, **params)
    for index, (row, tops) in enumerate(zip(output, output.top_logprobs, strict=True)):
        table = torch.log_softmax(transformers.logits(PROMPTS[index // 2], row.token_ids), -1)
        for place, top in enumerate(tops):
            assert list(top)[:2] == table[place].topk(2).indices.tolist()
            assert top[row.token_ids[place]] == row.logprobs[place]
        assert output.prompt_logprobs[index] == plain.prompt_logprobs[index // 2]  # type: ignore


def test_what_beams_cannot_have_is_refused_by_name(hf, tmp_path):
    def now() -> str:
        """Tells the time."""
        return "noon"

    from transformers import MambaConfig

    sizes = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
    save_tiny(MambaConfig(**sizes), 0, tmp_path, 1024)
    with started(tmp_path, name="hf") as of_state:
        for call in (
            lambda: hf.generate("a", num_beams=4, tools=[now]),
            lambda: hf.generate("a", num_beams=300),  # more than rows fit into memory
            lambda: hf.stream("a", num_beams=2),
            lambda: of_state.generate("a", num_beams=2),
        ):
            with refused(ConfigError, key="num_beams"):
                call()


def test_other_calls_are_answered_during_a_search_which_cancelling_ends(hf):
    many = {"num_beams": 16, "max_tokens": 128, "ignore_eos": True}

    async def calls() -> None:
        search = asyncio.ensure_future(hf.agenerate(as_ids(PROMPTS * 5), **many))
        assert await asyncio.to_thread(until, lambda: busy(hf), 30)
        assert len(await hf.agenerate("Hi", max_tokens=4, temperature=0)) == 1
        assert not search.done()
        search.cancel()
        with pytest.raises(asyncio.CancelledError):
            await search

    asyncio.run(calls())
    assert until(lambda: not busy(hf), 30)


def busy(engine: InferenceEngine) -> bool:
    """Whether a search still computes: each step of it calls the model."""
    model, calls = engine._backend.forward.model, []  # type: ignore[attr-defined]
    hook = model.register_forward_hook(lambda *_: calls.append(1))
    time.sleep(0.3)
    hook.remove()
    return bool(calls)
