"""Regular expressions of Python, respelt so that xgrammar matches nothing that Python would not.

In: a pattern as `re` takes it. Out: a `Pattern`: the same language in xgrammar's spelling, as bare
text or as what stands between a JSON string's quotes, and the lengths it can have. Both ends are
always anchored. Narrower than `re`, never wider: `\\d`, `\\w`, `\\s` and their opposites are ASCII,
and inside a JSON string a class never stands for what would have to be escaped there.

It corrects xgrammar 0.1.27: `cpp/regex_converter.cc` ignores anchors in the middle and writes
`[\\^a]` as a negation; `cpp/grammar_functor.cc` takes a class for one of bytes, so that `[一-鿿]`
matches every ASCII character and `.` no other one, while a negated class takes any character beyond
ASCII, well-formed or not: what a model writes that is no UTF-8 (U+FFFD in the text) may count as
fewer characters than it has. It knows nothing of schemas.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
import sys
from typing import Any

from _inf.errors import ConfigError, unended

# The parser that `re` itself uses, under the name it has in this Python.
_parser: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")

# A set of characters is one int, a bit for each code point.
ASCII = (1 << 128) - 1
EVERY = (1 << (sys.maxunicode + 1)) - 1
BEYOND_ASCII = EVERY & ~ASCII
MOST_LISTED = 128  # characters beyond ASCII in a class: they are spelt one by one
MOST_REPEATS = 10_000
NEEDS_ESCAPE_IN_JSON = (1 << 32) - 1 | 1 << ord('"') | 1 << ord("\\")
REFUSED = {
    "ASSERT": "a lookahead or lookbehind",
    "ASSERT_NOT": "a lookahead or lookbehind",
    "ATOMIC_GROUP": "an atomic group",
    "GROUPREF": "a backreference",
    "GROUPREF_EXISTS": "a conditional group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}


@dataclasses.dataclass(frozen=True)
class Pattern:
    """`text` in xgrammar's spelling; how many characters a match has, as the pattern is read."""

    text: str
    shortest: int
    longest: int


def respell(pattern: str, where: str, *, in_json: bool = False) -> Pattern:
    """Errors begin with `where`."""
    try:
        parsed = _parser.parse(pattern)
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{where}: {pattern!r} is no regular expression: {unended(error)}."
        ) from None
    if parsed.state.flags & ~re.UNICODE:
        raise ConfigError(f"{where}: flags cannot be enforced; spell out what they stand for.")
    shortest, longest = parsed.getwidth()
    try:
        text = _Speller(where, in_json).sequence(parsed, True, True)
    except RecursionError:  # it goes deeper than the parser of `re`
        raise ConfigError(f"{where}: it is nested too deeply.") from None
    return Pattern(text, shortest, longest)


class _Speller:
    """Walks the tree of `re`'s parser."""

    def __init__(self, where: str, in_json: bool) -> None:
        self.where = where
        self.in_json = in_json
        self.repeats = 1

    def refusal(self, what: str) -> ConfigError:
        return ConfigError(f"{self.where}: {what} cannot be enforced; spell the pattern without.")

    def sequence(self, items: Any, first: bool, last: bool) -> str:
        """`first`, `last`: whether the text begins before it, and ends after it."""
        items = list(items)
        kinds = [str(kind) for kind, _ in items]
        spelt = ""
        for place, (kind, (_, value)) in enumerate(zip(kinds, items, strict=True)):
            begins = first and all(k == "AT" for k in kinds[:place])
            ends = last and all(k == "AT" for k in kinds[place + 1 :])
            spelt += self.element(kind, value, begins, ends)
        return spelt

    def element(self, kind: str, value: Any, first: bool, last: bool) -> str:
        if kind == "LITERAL":
            return self.literal(chr(value))
        if kind in ("NOT_LITERAL", "ANY", "IN"):
            return self.characters(_members(kind, value))
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            return self.repeat(*value)
        if kind == "BRANCH":
            return self.branch([self.sequence(each, first, last) for each in value[1]])
        if kind == "SUBPATTERN":
            if value[1] or value[2]:
                raise self.refusal("a group's flag")
            inner = self.sequence(value[3], first, last)
            return f"(?:{inner})" if inner else ""
        if kind == "AT":
            at = str(value)
            if first and at in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
                return ""
            if last and at in ("AT_END", "AT_END_STRING"):
                return ""
            boundary = "BOUNDARY" in at
            raise self.refusal("a word boundary" if boundary else "an anchor in the middle")
        raise self.refusal(REFUSED.get(kind, f"{kind.lower()!r}"))

    def branch(self, cases: list[str]) -> str:
        spelt = "|".join(case for case in cases if case)
        optional = "?" if "" in cases else ""
        return f"(?:{spelt}){optional}" if spelt else ""

    def repeat(self, least: int, most: Any, items: Any) -> str:
        unbounded = int(most) == int(_parser.MAXREPEAT)
        times = max(1, least if unbounded else int(most))
        self.repeats *= times  # with those around it: xgrammar takes hours over many
        if self.repeats > MOST_REPEATS:
            raise ConfigError(
                f"{self.where}: at most {MOST_REPEATS} repeats, those inside others multiplied, or "
                "no bound at all."
            )
        inner = self.sequence(items, False, False)
        self.repeats //= times
        if not inner or most == 0:
            return ""
        # A bare class is repeated within one rule of the grammar, which is much faster.
        bare = len(items) == 1 and inner.startswith("[")
        count = f"{{{least},{'' if unbounded else int(most)}}}"
        if unbounded and least < 2:
            count = "*+"[least]
        return (inner if bare else f"(?:{inner})") + count

    def literal(self, character: str) -> str:
        if "\ud800" <= character <= "\udfff":
            raise self.refusal("half of a surrogate pair")
        if self.in_json and _bit(character) & NEEDS_ESCAPE_IN_JSON:
            return "".join(map(_escaped, json.dumps(character)[1:-1]))
        return _escaped(character)

    def characters(self, members: int) -> str:
        if self.in_json and members & ~NEEDS_ESCAPE_IN_JSON:
            members &= ~NEEDS_ESCAPE_IN_JSON
        ascii_members, beyond = members & ASCII, members & BEYOND_ASCII
        if beyond == BEYOND_ASCII:
            excluded = ASCII & ~ascii_members
            # A class cannot be empty; U+0000 is in no answer.
            return f"[^{_class(excluded or 1)}]"
        if beyond.bit_count() > MOST_LISTED:
            raise self.refusal(f"a class with some, but over {MOST_LISTED}, non-ASCII characters")
        listed = beyond | (ascii_members & NEEDS_ESCAPE_IN_JSON if self.in_json else 0)
        cases = [self.literal(chr(start + n)) for start, size in _runs(listed) for n in range(size)]
        if ascii_members & ~listed:
            cases.insert(0, f"[{_class(ascii_members & ~listed)}]")
        if not cases:
            raise ConfigError(f"{self.where}: a class that no character is in.")
        return cases[0] if len(cases) == 1 else f"(?:{'|'.join(cases)})"


def _bit(character: str | int) -> int:
    return 1 << (character if isinstance(character, int) else ord(character))


def _members(kind: str, value: Any) -> int:
    if kind == "ANY":
        return EVERY & ~_bit("\n")
    if kind == "NOT_LITERAL":
        return EVERY & ~_bit(value)
    members, categories = 0, set()
    for item, argument in value:
        if str(item) == "LITERAL":
            members |= _bit(argument)
        elif str(item) == "RANGE":
            members |= _bit(argument[1] + 1) - _bit(argument[0])
        elif str(item) == "CATEGORY":
            categories.add(str(argument))
    for category in categories:
        opposite = category.replace("CATEGORY_", "CATEGORY_NOT_")
        members |= EVERY if opposite in categories else _CATEGORIES[category]
    if str(value[0][0]) == "NEGATE":
        return (ASCII if categories else EVERY) & ~members
    return members


def _ascii_category(escape: str) -> int:
    return sum(_bit(code) for code in range(128) if re.match(escape, chr(code)))


_CATEGORIES = {
    f"CATEGORY_{negation}{name}": _ascii_category(escape)
    for name, escapes in {"DIGIT": "dD", "WORD": "wW", "SPACE": "sS"}.items()
    for negation, escape in (("", "\\" + escapes[0]), ("NOT_", "\\" + escapes[1]))
}


def _runs(members: int) -> list[tuple[int, int]]:
    """First code point and size of every run of members."""
    runs = []
    while members:
        start = (members & -members).bit_length() - 1
        rest = members >> start
        size = (~rest & (rest + 1)).bit_length() - 1
        runs.append((start, size))
        members &= ~(((1 << size) - 1) << start)
    return runs


def _class(members: int) -> str:
    """The inside of a class of ASCII characters."""
    caret = members & _bit("^")
    ranges = []
    for start, size in _runs(members & ~caret):
        first, last = _escaped(chr(start)), _escaped(chr(start + size - 1))
        ranges.append(first if size == 1 else f"{first}-{last}")
    # xgrammar respells \u001f as \x1f, which would swallow a hexadecimal digit behind it, and \^ as
    # ^, which would negate at the front.
    ranges.sort(key=lambda spelt: spelt.count("\\u"))
    return "".join(ranges) + ("\\^" if caret else "")


def _escaped(character: str) -> str:
    if character.isascii() and not character.isprintable():
        return f"\\u{ord(character):04x}"
    return f"\\{character}" if character in "^$.*+?\\()[]{}|-" else character
