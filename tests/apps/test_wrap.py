"""Wrapping of streamed text at words."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from _inf.apps.cli.wrap import WordWrap

TEXTS = st.text(alphabet="abc  \n\t中é", max_size=80)


def wrapped(text: str, width: int, pieces: int = 1) -> str:
    wrap = WordWrap(width)
    size = max(1, len(text) // pieces)
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    return "".join(map(wrap.feed, parts)) + wrap.end()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("one two three", ["one two", "three"]),
        ("one twothree", ["one", "twothree"]),
        ("onetwothreefour five", ["onetwothreefour", "five"]),  # wider than a line
        ("one\n\n  two three", ["one", "", "  two", "three"]),
        ("中文字中文字", ["中文字中", "文字"]),
        ("a\tb", ["a", "b"]),
    ],
)
def test_lines_break_between_words(text: str, lines: list[str]) -> None:
    assert wrapped(text, 8).split("\n") == lines


@given(TEXTS, st.integers(1, 20), st.integers(1, 80))
@example("aaaaa中中 中", 9, 1)
def test_pieces_do_not_matter_and_only_gaps_become_line_breaks(
    text: str, width: int, pieces: int
) -> None:
    whole = wrapped(text, width)
    assert wrapped(text, width, pieces) == whole
    assert "".join(whole.split()) == "".join(text.split())
    for line in whole.split("\n"):
        too_wide = any(cell_len(word) > width for word in line.split())  # left to the terminal
        one_word = " " not in line.strip()
        assert "\t" in line or too_wide or one_word or cell_len(line.rstrip()) <= width


def test_word_is_shown_when_it_is_complete_and_a_long_word_earlier() -> None:
    wrap = WordWrap(8)
    assert wrap.feed("one tw") == "one"
    assert wrap.feed("o ") == " two"
    assert wrap.feed("abcdefghijk") == "\nabcdefgh"
    assert wrap.end() == "ijk"
