"""Text of streams is never taken back, comes as early as possible, and belongs to its token ids."""

from __future__ import annotations

import asyncio
import functools
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
from tests.support.tiny import tiny_model

HALF = "\N{REPLACEMENT CHARACTER}"
WORDS = ["▁", "▁a", "▁the", "the", "a", "b", "▁b", ".", "é", "\n"]


@functools.cache
def tokenizer(kind: str) -> Any:
    """qwen: bytes of half characters in its tokens. llama: words that bring their space, characters
    as byte tokens, and a decoder that drops the first space. gemma: the same, and it does not."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if kind == "qwen":
        return AutoTokenizer.from_pretrained(tiny_model())
    tokens = ["</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    model = models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[], byte_fallback=True)
    backend = Tokenizer(model)
    strip = [decoders.Strip(" ", 1, 0)] if kind == "llama" else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def spelled(kind: str, *tokens: str) -> list[int]:
    ids = [tokenizer(kind).convert_tokens_to_ids(token) for token in tokens]
    assert None not in ids
    return ids


def byte_tokens(text: str) -> list[str]:
    return [f"<0x{byte:02X}>" for byte in text.encode()]


def row(
    ids: Sequence[int], finish: str | None = None, stop: int | str | None = None
) -> RequestOutput:
    return RequestOutput(list(ids), [], finish, stop, completion_tokens=len(ids))


def streamed(
    kind: str, ids: list[int], stops: Sequence[str] = (), end: Any = None
) -> list[StreamChunk | None]:
    """Feed one token at a time, then the end; return the chunks."""
    stream = TextStream(tokenizer(kind), stops)
    rows = [row(ids[:n]) for n in range(1, len(ids))]
    return [stream.feed(each) for each in [*rows, end or row(ids, "length")]]


def texts(chunks: Sequence[StreamChunk | None]) -> list[str | None]:
    return [None if chunk is None else chunk.text for chunk in chunks]


# ── What is held back ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["qwen", "llama", "gemma"])
def test_plain_text_comes_token_by_token_at_once(kind: str) -> None:
    if kind == "qwen":
        ids = tokenizer(kind).encode("The capital of France is Paris.")
    else:
        ids = spelled(kind, "▁the", "▁b", "a", "▁", "▁a", ".")
    chunks = streamed(kind, ids)
    assert [chunk and chunk.token_ids for chunk in chunks] == [[token] for token in ids]
    assert "".join(map(str, texts(chunks))) == tokenizer(kind).decode(ids)
    assert all(texts(chunks))


def test_tokens_of_half_a_character_wait_for_its_end() -> None:
    ids = tokenizer("qwen").encode("a🙂b")
    middle = len(ids) - 2
    assert middle > 1
    chunks = streamed("qwen", ids)
    assert texts(chunks) == ["a", *[None] * (middle - 1), "🙂", "b"]
    assert chunks[-2] is not None and chunks[-2].token_ids == ids[1:-1]


def test_byte_tokens_wait_for_the_end_of_their_run_which_is_decoded_as_one() -> None:
    """`tokenizers.decoders.ByteFallback` makes U+FFFD of every byte of a run that is not UTF-8."""
    ids = spelled("llama", "▁a", *byte_tokens("é"), *byte_tokens("🙂")[:1], "b")
    assert tokenizer("llama").decode(ids[:3]) == "aé"
    assert tokenizer("llama").decode(ids) == f"a{HALF * 3}b"
    assert texts(streamed("llama", ids)) == ["a", None, None, None, f"{HALF * 3}b"]
    whole = spelled("llama", "▁a", *byte_tokens("é"), "b")
    assert texts(streamed("llama", whole)) == ["a", None, None, "éb"]


@pytest.mark.parametrize(
    ("tokens", "stops", "shown"),
    [
        ("a b ▁a b . the", ["b a.", "b ab.a"], ["a", None, None, None, None, "b ab.the"]),
        ("a a a a a a", ["aaab"], [None, None, None, "a", "a", "aaaa"]),
        ("a ▁the b", ["ex"], ["a", None, " theb"]),  # the whole token waits
        ("a b a b", ["ab"], [None, "ab", None, "ab"]),  # min_tokens let it pass
        ("a </s> b", [], ["a", "", "b"]),  # a special token has no text
    ],
)
def test_beginning_of_a_stop_string_waits_until_it_is_none(
    tokens: str, stops: list[str], shown: list[str | None]
) -> None:
    assert texts(streamed("gemma", spelled("gemma", *tokens.split()), stops)) == shown


# ── What holds for any tokens ────────────────────────────────────────────────────────────────────


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@example("llama", [0xC3 + 1, 0xA9 + 1, 0xF0 + 1, 0, 0x9F + 1, 258], [], [], True, False)
@given(
    st.sampled_from(["qwen", "llama", "gemma"]),
    st.lists(st.integers(0, 383), max_size=24),
    st.lists(st.text(f"ab .e{HALF}", min_size=1, max_size=4), max_size=2),
    st.lists(st.integers(1, 4), max_size=24),
    st.booleans(),
    st.booleans(),
)
def test_text_of_the_chunks_is_always_that_of_their_ids_and_at_the_end_the_answers(
    kind: str, ids: list[int], stops: list[str], steps: list[int], skip: bool, include: bool
) -> None:
    ids = [i if kind == "qwen" else i % len(tokenizer(kind)) for i in ids]

    def decoded(part: Sequence[int]) -> str:
        return decoded_text(part, tokenizer(kind), skip_special_tokens=skip)

    last = row(ids, "length")
    for n in range(1, len(ids) + 1):
        if found := [stop for stop in stops if stop in decoded(ids[:n])]:
            last = row(ids[:n], "stop", found[0])
            break
    how = {"skip_special_tokens": skip, "include_stop": include}
    stream = TextStream(tokenizer(kind), stops, **how)
    sent_ids: list[int] = []
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
    assert end is not None and sent_ids + end.token_ids == last.token_ids
    assert sent + end.text == answer_text(last, tokenizer(kind), **how)


async def all_chunks(stream: Stream, *, within_a_loop: bool) -> list[StreamChunk]:
    return [each async for each in stream.achunks()] if within_a_loop else [*stream.chunks()]


@pytest.mark.parametrize("within_a_loop", [False, True])
def test_rows_that_a_slow_reader_has_not_taken_are_not_kept(within_a_loop: bool) -> None:
    ids = tokenizer("qwen").encode("The capital of France is Paris, é 🙂. " * 20)
    rows: list[weakref.ref[RequestOutput]] = []

    def begin(request: Any, put: Any, cancel: Any) -> Future[None]:
        for count in range(1, len(ids) + 1):
            ended = "stop" if count == len(ids) else None
            each = RequestOutput(ids[:count], [-1.0 * n for n in range(count)], finish_reason=ended)
            rows.append(weakref.ref(each))
            put(each)
        del each
        assert len([each for each in rows if each() is not None]) == 1
        done: Future[None] = Future()
        done.set_result(None)
        return done

    sampling: Any = SimpleNamespace(text_options={}, timeout=None)
    request = Request([5], SamplingParams(max_tokens=len(ids)))
    stream = Stream(
        begin, request, sampling, lambda row: row.finish_reason, tokenizer("qwen"), Stats()
    )
    chunks = asyncio.run(all_chunks(stream, within_a_loop=within_a_loop))
    assert [token for chunk in chunks for token in chunk.token_ids] == ids
    assert [value for chunk in chunks for value in chunk.logprobs] == [
        -1.0 * n for n in range(len(ids))
    ]
    assert "".join(chunk.text for chunk in chunks) == tokenizer("qwen").decode(ids)
    assert chunks[-1].finish_reason == "stop" and chunks[-1].metadata is not None
