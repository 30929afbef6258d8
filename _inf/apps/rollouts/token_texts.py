"""The text of each token id. Joined, the texts are the decoded text of all ids."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence

from _inf.response.decode import decoded_text
from _inf.response.streaming import UNFINISHED, TextStream
from _inf.types import RequestOutput, Tokenizer

_alone: weakref.WeakKeyDictionary[Tokenizer, dict[int, str]] = weakref.WeakKeyDictionary()


def token_texts(ids: Sequence[int], tokenizer: Tokenizer) -> list[str]:
    """Return each id's text, special tokens included. Tokens that are parts of one character have
    it at the last of them (of a tokenizer such as Llama 2's, at the token after them)."""
    known = _alone.setdefault(tokenizer, {})
    for token in set(ids) - known.keys():
        known[token] = decoded_text([token], tokenizer, skip_special_tokens=False)
    texts: list[str] = []
    for parts, run in itertools.groupby(ids, lambda token: UNFINISHED in known[token]):
        together = list(run)
        if parts:
            whole = decoded_text(together, tokenizer, skip_special_tokens=False)
            texts += [""] * (len(together) - 1) + [whole]
        else:
            texts += [known[token] for token in together]
    if "".join(texts) == decoded_text(ids, tokenizer, skip_special_tokens=False):
        return texts
    return _one_by_one(list(ids), tokenizer)


def _one_by_one(ids: list[int], tokenizer: Tokenizer) -> list[str]:
    """The same for a tokenizer whose tokens read differently alone, such as Llama 2's."""
    stream = TextStream(tokenizer, (), skip_special_tokens=False)
    texts: list[str] = []
    for end in range(1, len(ids) + 1):
        last = "length" if end == len(ids) else None
        chunk = stream.feed(RequestOutput(ids[:end], [], [], last, None, 0, end, 0, 0))
        if chunk is not None:
            texts += [""] * (len(chunk.token_ids) - 1) + [chunk.text]
    return texts
