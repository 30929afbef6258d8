"""Wraps streamed text between words for a terminal."""

from __future__ import annotations

from rich.cells import cell_len

TAB = 8  # cells at most


class WordWrap:
    """Breaks text into lines of at most `width` cells; holds the last word until it is complete.

    Between wide characters it may break anywhere (Chinese has no spaces). The terminal breaks a
    word that is wider than a line, and line breaks of the text are kept.
    """

    def __init__(self, width: int) -> None:
        self._width = max(1, width)
        self._column = 0
        self._gap = self._word = ""

    def feed(self, text: str) -> str:
        """Add text; return what can be shown now."""
        return "".join(map(self._character, text))

    def end(self) -> str:
        """Return the gap and the word that were held back."""
        size = cell_len(self._word)
        gap, gap_size = self._gap, sum(TAB if char == "\t" else 1 for char in self._gap)
        breakable = size and (gap or cell_len(self._word[0]) > 1)
        if self._column and breakable and self._column + gap_size + size > self._width:
            gap, gap_size, self._column = "\n", 0, 0
        column = self._column + gap_size + size
        self._column = (column - 1) % self._width + 1 if column else 0
        shown, self._gap, self._word = gap + self._word, "", ""
        return shown

    def _character(self, character: str) -> str:
        if character == "\n":
            shown = self.end() + character
            self._column = 0
            return shown
        if character.isspace():
            shown = self.end() if self._word else ""
            self._gap += character
            return shown
        wide = cell_len(character) > 1 or cell_len(self._word) >= self._width
        shown = self.end() if wide and self._word else ""  # a gap is held until the word after it
        self._word += character
        return shown
