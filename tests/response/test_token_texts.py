"""Whatever the tokenizer, the texts of an answer's tokens join to its text, their bytes to its
bytes, and each offset is a place in it; in a stream too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from _inf.response.decode import decoded_text
from _inf.response.streaming import TextStream
from _inf.response.token_texts import TokenTexts
from _inf.types import RequestOutput
from tests.support.tokenizers import KINDS, MARK, WORDS, byte_tokens, named, tokenizer_of


def ids_of(kind: str) -> st.SearchStrategy[list[int]]:
    """Any tokens, and the bytes of any text, so that whole characters come."""
    tokenizer = tokenizer_of(kind)
    some = st.integers(0, len(tokenizer) - 1).map(lambda token: [token])
    special = st.sampled_from(tokenizer.all_special_ids).map(lambda token: [token])
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False)

    def of_bytes(text: str) -> Any:
        if kind != "byte level":
            return tokenizer.convert_tokens_to_ids(byte_tokens(text))
        split = letters.pre_tokenize_str(text)
        return tokenizer.convert_tokens_to_ids([letter for word, _ in split for letter in word])

    pieces = [some, special]
    if kind != "WordPiece":
        pieces.append(st.text("aé日😀𝕏 \n", max_size=4).map(of_bytes))
    if kind in ("Llama 2", "Gemma"):
        pieces.append(st.sampled_from(WORDS).map(lambda word: named(kind, word)))
    return st.lists(st.one_of(pieces), max_size=8).map(lambda parts: sum(parts, []))


def check(tokens: list[Any], text: str, hidden: set[int]) -> None:
    shown = [each for each in tokens if each.token not in hidden]
    assert "".join(each.text for each in shown) == text
    place = 0
    for each in tokens:
        assert each.offset == place
        assert each.token in hidden or text.startswith(each.text, place)
        place += 0 if each.token in hidden else len(each.text)
    assert place == len(text)
    assert all(each.bytes is not None for each in shown)
    own = b"".join(bytes(each.bytes) for each in shown)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert own == text.encode()


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_texts_of_tokens_join_to_the_text(kind, skip, marked, data):
    tokenizer, ids = tokenizer_of(kind), data.draw(ids_of(kind))
    shown = {tokenizer.convert_tokens_to_ids(MARK): MARK} if marked else {}
    form = {"skip_special_tokens": skip, "shown": shown}
    hidden = {*tokenizer.all_special_ids} - {*shown} if skip else set[int]()
    whole = TokenTexts.of_answer(tokenizer, **form).add(ids)
    assert [each.token for each in whole] == ids
    check(whole, decoded_text(ids, tokenizer, **form), hidden)

    stream, texts, found, text = TextStream(tokenizer, (), **form), None, [], ""
    texts = TokenTexts.of_answer(tokenizer, **form)
    for end in range(1, len(ids) + 1):
        last = "length" if end == len(ids) else None
        chunk = stream.feed(RequestOutput(ids[:end], finish_reason=last, completion_tokens=end))
        if chunk is not None:
            found += texts.add(chunk.token_ids)
            text += chunk.text
            assert last or sum(len(e.text) for e in found if e.token not in hidden) == len(text)
    check(found, text, hidden)


def test_tokens_that_differ_by_a_space_have_two_names():
    texts = TokenTexts(tokenizer_of("Llama 2"))
    _, after_it = texts.add(named("Llama 2", "▁the", "▁w"))
    assert (after_it.text, after_it.bytes) == (" w", [32, 119])
    other = texts.other(*named("Llama 2", "w"), after_it)
    assert (other.text, other.bytes) == ("w", [119])
