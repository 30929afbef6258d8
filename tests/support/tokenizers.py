"""Tokenizers of the kinds that decode differently: bytes of half characters in their tokens; words
that bring their space, with characters as byte tokens; parts of words."""

from __future__ import annotations

import functools
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = [*"a b é the 日 ing ▁ ▁▁ ▁a ▁b ▁the ▁w w ! .".split(), "\n", "<0x"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
END, MARK = "<end>", "<mark>"


def _byte_level() -> Tokenizer:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*letters, "ab", "Ġa", "ðŁ", "Ĺ¥", "ĠðŁ"]
    merges = [("a", "b"), ("Ġ", "a"), ("ð", "Ł"), ("Ĺ", "¥"), ("Ġ", "ðŁ")]
    model = Tokenizer(models.BPE({word: n for n, word in enumerate(vocabulary)}, merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    return model


def _with_bytes(*last: Any) -> Tokenizer:
    vocabulary = {word: n for n, word in enumerate([*BYTES, *WORDS])}
    model = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    model.decoder = decoders.Sequence(steps)
    return model


def _word_pieces() -> Tokenizer:
    words = ["a", "##b", "##é", "the", "日", "!", "w", "##ing", "##\N{REPLACEMENT CHARACTER}"]
    model = Tokenizer(models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="a"))
    model.decoder = decoders.WordPiece(cleanup=False)
    return model


KINDS = {
    "byte level": _byte_level,
    "Llama 2": lambda: _with_bytes(decoders.Strip(" ", 1, 0)),  # drops the first space
    "Gemma": _with_bytes,
    "WordPiece": _word_pieces,
}


@functools.cache
def tokenizer_of(kind: str) -> Any:
    model = KINDS[kind]()
    model.add_special_tokens([AddedToken(word, special=True) for word in (END, MARK)])
    special = {"eos_token": END, "additional_special_tokens": [MARK]}
    return PreTrainedTokenizerFast(tokenizer_object=model, **special)


def byte_tokens(text: str) -> list[str]:
    """The tokens of its bytes, of Llama 2 and Gemma."""
    return [BYTES[byte] for byte in text.encode()]


def named(kind: str, *names: str) -> list[int]:
    """The ids of these tokens."""
    ids = [tokenizer_of(kind).convert_tokens_to_ids(name) for name in names]
    assert None not in ids
    return ids
