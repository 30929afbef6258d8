"""Whatever the tokenizer, the texts of an answer's tokens join to its text, their bytes to its
bytes, and each offset is a place in it; in a stream too."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from _inf.response.decode import decoded_text
from _inf.response.streaming import TextStream
from _inf.response.token_texts import TokenTexts
from _inf.types import RequestOutput

WORDS = ["a", "b", "é", "the", "日", "ing", "▁", "▁▁", "▁a", "▁the", "▁w", "w", "!", "<0x"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
END = "<end>"
MARK = "<mark>"


def _byte_level() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*letters, "ab", "Ġa", "ðŁ", "Ĺ¥", "ĠðŁ"]
    merges = [("a", "b"), ("Ġ", "a"), ("ð", "Ł"), ("Ĺ", "¥"), ("Ġ", "ðŁ")]
    model = Tokenizer(models.BPE({word: n for n, word in enumerate(vocabulary)}, merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    return model


def _with_bytes(*steps: Any) -> Tokenizer:
    vocabulary = {word: n for n, word in enumerate([*BYTES, *WORDS])}
    model = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    model.decoder = decoders.Sequence([*steps])
    return model


def _llama2() -> Tokenizer:
    before = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return _with_bytes(*before, decoders.Strip(" ", 1, 0))


def _gemma() -> Tokenizer:
    return _with_bytes(decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())


def _word_pieces() -> Tokenizer:
    words = ["a", "##b", "##é", "the", "日", "!", "w", "##ing", "##\N{REPLACEMENT CHARACTER}"]
    model = Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="a"))
    model.decoder = decoders.WordPiece(cleanup=False)
    return model


KINDS = {
    "byte level": _byte_level,
    "Llama 2": _llama2,
    "Gemma": _gemma,
    "WordPiece": _word_pieces,
}


@functools.cache
def tokenizer_of(kind: str) -> Any:
    model = KINDS[kind]()
    model.add_special_tokens([AddedToken(word, special=True) for word in (END, MARK)])
    special = {"eos_token": END, "additional_special_tokens": [MARK]}
    return PreTrainedTokenizerFast(tokenizer_object=model, **special)


def ids_of(kind: str) -> st.SearchStrategy[list[int]]:
    """Any tokens, and the bytes of any text, so that whole characters come."""
    tokenizer = tokenizer_of(kind)
    some = st.integers(0, len(tokenizer) - 1).map(lambda token: [token])
    special = st.sampled_from(tokenizer.all_special_ids).map(lambda token: [token])
    pieces = [some, special]
    if kind != "WordPiece":
        names = BYTES
        if kind == "byte level":
            letters = pre_tokenizers.ByteLevel(add_prefix_space=False)
            pieces.append(
                st.text("aé日😀𝕏 ", max_size=4).map(
                    lambda text: tokenizer.convert_tokens_to_ids(
                        [letter for word, _ in letters.pre_tokenize_str(text) for letter in word]
                    )
                )
            )
        else:
            pieces.append(
                st.text("aé日😀𝕏 \n", max_size=4).map(
                    lambda text: tokenizer.convert_tokens_to_ids([names[b] for b in text.encode()])
                )
            )
            pieces.append(
                st.sampled_from(WORDS).map(lambda w: [tokenizer.convert_tokens_to_ids(w)])
            )
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
@settings(deadline=None)
@given(data=st.data())
def test_texts_of_tokens_join_to_the_text(
    kind: str, skip: bool, marked: bool, data: st.DataObject
) -> None:
    tokenizer, ids = tokenizer_of(kind), data.draw(ids_of(kind))
    shown = {tokenizer.convert_tokens_to_ids(MARK): MARK} if marked else {}
    form: dict[str, Any] = {"skip_special_tokens": skip, "shown": shown}
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


def named(kind: str, *names: str) -> tuple[Any, list[int]]:
    tokenizer = tokenizer_of(kind)
    return tokenizer, tokenizer.convert_tokens_to_ids(list(names))


def test_tokens_that_differ_by_a_space_have_two_names() -> None:
    tokenizer, ids = named("Llama 2", "▁the", "▁w", "<0xC3>", "<0xA9>", "▁a")
    texts = TokenTexts(tokenizer)
    tokens = texts.add(ids)
    assert [each.text for each in tokens] == ["the", " w", "", "é", " a"]
    assert [each.offset for each in tokens] == [0, 3, 5, 5, 6]
    assert [each.bytes for each in tokens][1:4] == [[32, 119], [0xC3], [0xA9]]
    other = texts.other(tokenizer.convert_tokens_to_ids("w"), tokens[1])
    assert (other.text, other.bytes) == ("w", [119])
