"""Text of streams is never taken back, comes as early as possible, and belongs to its token ids."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from _inf.response.decode import answer_text, decoded_text
from _inf.response.stats import Stats
from _inf.response.streaming import Stream, StreamChunk, TextStream
from _inf.types import Request, RequestOutput, SamplingParams
from tests.support.tokenizers import byte_tokens, named, tokenizer_of

HALF = "\N{REPLACEMENT CHARACTER}"
KINDS = ["byte level", "Llama 2", "Gemma"]


def row(
    ids: Sequence[int], finish: str | None = None, stop: int | str | None = None
) -> RequestOutput:
    return RequestOutput(list(ids), [], finish, stop, completion_tokens=len(ids))


def streamed(
    kind: str, ids: list[int], stops: Sequence[str] = (), end: Any = None
) -> list[StreamChunk | None]:
    """Feed one token at a time, then the end; return the chunks."""
    stream = TextStream(tokenizer_of(kind), stops)
    rows = [row(ids[:n]) for n in range(1, len(ids))]
    return [stream.feed(each) for each in [*rows, end or row(ids, "length")]]


def texts(chunks: Sequence[StreamChunk | None]) -> list[str | None]:
    return [None if chunk is None else chunk.text for chunk in chunks]


# ── What is held back ────────────────────────────────────────────────────────────────────────────


def test_tokens_of_half_a_character_wait_for_its_end():
    ids = tokenizer_of("byte level").encode("a🙂b")
    middle = len(ids) - 2
    assert middle > 1
    chunks = streamed("byte level", ids)
    assert texts(chunks) == ["a", *[None] * (middle - 1), "🙂", "b"]
    assert chunks[-2].token_ids == ids[1:-1]


def test_byte_tokens_wait_for_the_end_of_their_run_which_is_decoded_as_one():
    """`tokenizers.decoders.ByteFallback` makes U+FFFD of every byte of a run that is not UTF-8."""
    ids = named("Llama 2", "▁a", *byte_tokens("é"), *byte_tokens("🙂")[:1], "b")
    assert tokenizer_of("Llama 2").decode(ids[:3]) == "aé"
    assert tokenizer_of("Llama 2").decode(ids) == f"a{HALF * 3}b"
    assert texts(streamed("Llama 2", ids)) == ["a", None, None, None, f"{HALF * 3}b"]
    whole = named("Llama 2", "▁a", *byte_tokens("é"), "b")
    assert texts(streamed("Llama 2", whole)) == ["a", None, None, "éb"]


@pytest.mark.parametrize(
    ("tokens", "stops", "shown"),
    [
        ("a b ▁a b . the", ["b a.", "b ab.a"], ["a", None, None, None, None, "b ab.the"]),
        ("a a a a a a", ["aaab"], [None, None, None, "a", "a", "aaaa"]),
        ("a ▁the b", ["ex"], ["a", None, " theb"]),  # the whole token waits
        ("a b a b", ["ab"], [None, "ab", None, "ab"]),  # min_tokens let it pass
        ("a <end> b", [], ["a", "", "b"]),  # a special token has no text
    ],
)
def test_beginning_of_a_stop_string_waits_until_it_is_none(tokens, stops, shown):
    assert texts(streamed("Gemma", named("Gemma", *tokens.split()), stops)) == shown


# ── What holds for any tokens ────────────────────────────────────────────────────────────────────


@settings(max_examples=400)
@example("Llama 2", [0xC3, 0xA9, 0xF0, *named("Llama 2", "<end>"), 0x9F, 256], [], [], True, False)
@given(
    st.sampled_from(KINDS),
    st.lists(st.integers(0, 383), max_size=24),
    st.lists(st.text(f"ab .e{HALF}", min_size=1, max_size=4), max_size=2),
    st.lists(st.integers(1, 4), max_size=24),
    st.booleans(),
    st.booleans(),
)
def test_text_of_the_chunks_is_always_that_of_their_ids_and_at_the_end_the_answers(
    kind, ids, stops, steps, skip, include
):
    ids = [i % len(tokenizer_of(kind)) for i in ids]

    def decoded(part: Sequence[int]) -> str:
        return decoded_text(part, tokenizer_of(kind), skip_special_tokens=skip)

    last = row(ids, "length")
    for n in range(1, len(ids) + 1):
        if found := [stop for stop in stops if stop in decoded(ids[:n])]:
            last = row(ids[:n], "stop", found[0])
            break
    how = {"skip_special_tokens": skip, "include_stop": include}
    stream = TextStream(tokenizer_of(kind), stops, **how)
    sent_ids = []
    sent, seen = "", 0
    for step in [*steps, *[1] * len(ids)]:
        seen += step
        if seen >= len(last.token_ids):
            break
        chunk = stream.feed(row(ids[:seen]))
        if chunk is not None:
            assert chunk.token_ids and chunk.finish_reason is None
            sent, sent_ids = sent + chunk.text, sent_ids + chunk.token_ids
            assert sent == decoded(sent_ids)
    end = stream.feed(last)
    assert sent_ids + end.token_ids == last.token_ids
    assert sent + end.text == answer_text(last, tokenizer_of(kind), **how)


async def all_chunks(stream: Stream, *, within_a_loop: bool) -> list[StreamChunk]:
    return [each async for each in stream.achunks()] if within_a_loop else [*stream.chunks()]


@pytest.mark.parametrize("within_a_loop", [False, True])
def test_rows_that_a_slow_reader_has_not_taken_are_not_kept(within_a_loop):
    ids = tokenizer_of("byte level").encode("The capital of France is Paris, é 🙂. " * 20)
    rows = []

    def begin(request: Any, put: Any, cancel: Any) -> Future[None]:
        for count in range(1, len(ids) + 1):
            ended = "stop" if count == len(ids) else None
            each = RequestOutput(ids[:count], [-1.0 * n for n in range(count)], finish_reason=ended)
            rows.append(weakref.ref(each))
            put(each)
        del each
        assert len([each for each in rows if each() is not None]) == 1
        done = Future()
        done.set_result(None)
        return done

    sampling = SimpleNamespace(text_options={}, timeout=None)
    request = Request([5], SamplingParams(max_tokens=len(ids)))
    stream = Stream(
        begin, request, sampling, lambda row: row.finish_reason, tokenizer_of("byte level"), Stats()
    )
    chunks = asyncio.run(all_chunks(stream, within_a_loop=within_a_loop))
    assert [token for chunk in chunks for token in chunk.token_ids] == ids
    assert [value for chunk in chunks for value in chunk.logprobs] == [
        -1.0 * n for n in range(len(ids))
    ]
    assert "".join(chunk.text for chunk in chunks) == tokenizer_of("byte level").decode(ids)
    assert chunks[-1].finish_reason == "stop" and chunks[-1].metadata is not None
