"""The texts and the bytes of an answer's tokens; joined, the texts are the answer's text.

A token alone may read differently: some decoders drop the first token's space, and a token may be
only a part of a character. Such a character is the text of its last token, and those before have
an empty text; the bytes of each token are its own.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Collection, Mapping, Sequence

from _inf.response.decode import NONE_SHOWN, decoded_text
from _inf.response.streaming import BYTE, UNFINISHED
from _inf.types import Tokenizer

SEARCHED = 5000  # tokens of a vocabulary, for one that reads the same everywhere


@dataclasses.dataclass(frozen=True)
class TokenText:
    """One token's text, its place in the answer's text, and its bytes, None if they are not known.
    first: whether the text begins here."""

    token: int
    text: str
    offset: int
    bytes: list[int] | None
    first: bool


class TokenTexts:
    """The tokens of one answer, as they come. hidden: special tokens that are not in its text; they
    are named nevertheless. marks: the texts of special tokens, between which text is decoded apart.
    offset: the place of the next token's text; it may be set."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        hidden: Collection[int] = (),
        marks: Mapping[int, str] = NONE_SHOWN,
    ) -> None:
        self._vocabulary = _vocabulary(tokenizer)
        self._hidden, self._marks = hidden, marks
        self._first = True
        self.offset = 0

    @classmethod
    def of_answer(
        cls,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        shown: Mapping[int, str] = NONE_SHOWN,
    ) -> TokenTexts:
        """The tokens of what `decoded_text` makes with these."""
        if not skip_special_tokens:
            return cls(tokenizer)
        return cls(tokenizer, hidden={*tokenizer.all_special_ids} - {*shown}, marks=shown)

    def add(self, ids: Sequence[int]) -> list[TokenText]:
        """The next tokens, of which the last one ends a character unless the answer ends here."""
        found, known = [], self._vocabulary
        firsts, texts = self._shown([token for token in ids if token not in self._hidden])
        shown = iter(zip(firsts, texts, strict=True))
        for token in ids:
            if token in self._hidden:
                text, size, first = known.text(token, first=False), 0, self._first
            else:
                first, text = next(shown)
                size = len(text)
            own = known.bytes_of(token, text, first=first)
            found.append(TokenText(token, text, self.offset, own, first))
            self.offset += size
        return found

    def other(self, token: int, place: TokenText) -> TokenText:
        """What another token would be in a token's place."""
        if token == place.token:
            return place
        text = self._marks.get(token) or self._vocabulary.text(token, first=place.first)
        own = self._vocabulary.bytes_of(token, text, first=place.first)
        return TokenText(token, text, place.offset, own, place.first)

    def _shown(self, ids: Sequence[int]) -> tuple[list[bool], list[str]]:
        """Whether the text begins with each of the tokens, and their texts."""
        firsts, texts = list[bool](), list[str]()
        for mark, run in itertools.groupby(ids, self._marks.__contains__):
            group = [*run]
            firsts += [self._first] + [mark] * (len(group) - 1)
            if mark:
                texts += [self._marks[token] for token in group]
            else:
                texts += self._vocabulary.texts(group, first=self._first)
            self._first = mark
        return firsts, texts


class _Vocabulary:
    """A tokenizer's tokens, at the beginning of a text (`first`) and after others; what was found
    of each is kept."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = weakref.proxy(tokenizer)
        self._before = self._plain()
        self.text = functools.cache(self._text)
        self._is_part = functools.cache(self._may_be_part)
        self._bytes = functools.cache(self._own_bytes)

    def _text(self, token: int, *, first: bool) -> str:
        """A token's text alone; of a part of a character it has U+FFFD."""
        return self._together([token], first=first)

    def texts(self, ids: Sequence[int], *, first: bool) -> list[str]:
        """Each token's text; joined, they are the text of all."""
        texts: list[str] = []
        for parts, run in itertools.groupby(ids, self._is_part):
            group, begins = [*run], first and not texts
            if parts:
                texts += self._characters(group, first=begins)
            else:
                texts += [
                    self.text(token, first=begins and n == 0) for n, token in enumerate(group)
                ]
        if "".join(texts) == (whole := self._together(ids, first=first)):
            return texts
        # A decoder that reads a token otherwise after some tokens than after others.
        return [""] * (len(ids) - 1) + [whole]

    def bytes_of(self, token: int, text: str, *, first: bool) -> list[int] | None:
        """A token's bytes; text: what it is in its place."""
        if not self._is_part(token) or UNFINISHED in self._name(token):
            return [*text.encode()]
        if first and not self.text(token, first=True):
            return []  # a space that the decoder drops
        own = self._bytes(token)
        return None if own is None else [*own]

    def _plain(self) -> list[int]:
        """A token that reads the same everywhere, perhaps: a letter or a digit, if there is one; no
        byte: others change its text."""
        for token in range(min(len(self._tokenizer), SEARCHED)):
            if BYTE.fullmatch(self._name(token)):
                continue
            if decoded_text([token], self._tokenizer, skip_special_tokens=True).isalnum():
                return [token]
        return []

    def _together(self, ids: Sequence[int], *, first: bool) -> str:
        before = [] if first else self._before
        text = decoded_text([*before, *ids], self._tokenizer, skip_special_tokens=False)
        alone = decoded_text(before, self._tokenizer, skip_special_tokens=False) if before else ""
        return text.removeprefix(alone)

    def _may_be_part(self, token: int) -> bool:
        """Whether a token may be a part of a character."""
        byte = BYTE.fullmatch(self._name(token)) and self._bytes(token) is not None
        return bool(byte) or UNFINISHED in self.text(token, first=False)

    def _name(self, token: int) -> str:
        return str(self._tokenizer.convert_ids_to_tokens(token))

    def _own_bytes(self, token: int) -> bytes | None:
        """The bytes that a token's name says, if they read as its text does."""
        own, text = _named_bytes(self._name(token)), self.text(token, first=False)
        return own if own is not None and own.decode(errors="replace") == text else None

    def _characters(self, parts: Sequence[int], *, first: bool) -> list[str]:
        """The texts of parts of characters: each character is the text of its last part."""
        whole = self._together(parts, first=first)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = [decoder.decode(self._bytes(token) or b"") for token in parts]
        texts[-1] += decoder.decode(b"", final=True)
        return texts if "".join(texts) == whole else [""] * (len(parts) - 1) + [whole]


_known: weakref.WeakKeyDictionary[Tokenizer, _Vocabulary] = weakref.WeakKeyDictionary()


def _vocabulary(tokenizer: Tokenizer) -> _Vocabulary:
    if tokenizer not in _known:
        _known[tokenizer] = _Vocabulary(tokenizer)
    return _known[tokenizer]


@functools.cache
def _byte_characters() -> dict[str, int]:
    """The characters with which byte-level vocabularies write bytes (GPT-2's `bytes_to_unicode`):
    the printable ones of Latin 1 themselves, and for the others those from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {chr(each): each for each in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


def _named_bytes(name: str) -> bytes | None:
    if BYTE.fullmatch(name):
        return bytes([int(name[3:5], 16)])
    known = _byte_characters()
    return bytes(known[each] for each in name) if known.keys() >= {*name} else None
