"""The programs that stand in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    """All blocks of code of a page in a language, as they stand."""
    found = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    assert found
    return found


def printing(page: str, language: str = "python") -> list[tuple[str, list[str]]]:
    """The programs of a page, each with the lines that it prints, as the comments behind its
    `print(...)` and the block of text after it say."""
    form = rf"^```{language}\n(.*?)^```\n(?:\n```text\n(.*?)^```)?"
    found = re.findall(form, (ROOT / page).read_text(), re.S | re.M)
    comments = r"^ *print\(.*\)  # (.*)$"
    return [(code, [*re.findall(comments, code, re.M), *text.splitlines()]) for code, text in found]
