"""Breaks the special tokens in texts that the caller did not write, so that they end no message."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from _inf.types import Tokenizer


def escaped_json(value: object, tokenizer: Tokenizer) -> Any:
    """A JSON value with the special tokens in its texts broken, keys too."""
    markup = special_tokens(tokenizer)

    def escaped(value: object) -> object:
        if isinstance(value, str):
            return broken(value, markup)
        if isinstance(value, list):
            return [escaped(each) for each in value]
        if isinstance(value, dict):
            return {escaped(key): escaped(each) for key, each in value.items()}
        return value

    return escaped(value)


def broken(text: str, markup: re.Pattern[str]) -> str:
    while (changed := markup.sub(lambda m: f"{m[0][0]} {m[0][1:]}", text)) != text:
        text = changed
    return text


def special_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    names = {*tokenizer.get_added_vocab(), *tokenizer.all_special_tokens}
    return any_of(name for name in names if len(name) > 1 and name.strip())


def any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of any of the words, the longest first; without words, of nothing."""
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
