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
