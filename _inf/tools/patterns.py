"""Searches text for a pattern of a JSON schema in time linear in the text.

Python's `re` can take hours for forty characters, and no other thread runs meanwhile.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# JSON as `json.dumps` writes it.
COMPACT: Any = {"whitespace_flexible": False}


class PatternLimitError(ValueError):
    """llguidance does not take the pattern, or came to one of its limits."""


@functools.cache
def bytes_as_tokens() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


def string_matcher(pattern: str) -> LLMatcher:
    """A matcher of JSON strings that the pattern matches; raises `PatternLimitError`."""
    from llguidance import LLMatcher

    schema = {"type": "string", "pattern": pattern}
    grammar = LLMatcher.grammar_from_json_schema(schema, defaults=COMPACT)
    matcher = LLMatcher(bytes_as_tokens(), grammar, log_level=0)
    if error := matcher.get_error():
        raise PatternLimitError(error.partition("\n")[0])
    return matcher


def is_found(matcher: LLMatcher, text: str) -> bool:
    """Whether the matcher's pattern is found in the text; raises `PatternLimitError`."""
    matcher.reset()
    tokens = list(json.dumps(text, ensure_ascii=False).encode())
    found = matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
    if error := matcher.get_error():
        raise PatternLimitError(error.partition("\n")[0])
    return bool(found)
