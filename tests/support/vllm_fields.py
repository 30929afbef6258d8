"""The table of docs/backends.md of vLLM's `SamplingParams`."""

from __future__ import annotations

import re

from tests.support.pages import ROOT


def vllm_fields() -> dict[str, str]:
    """Each field, and what it is here: the same, different or refused."""
    page = (ROOT / "docs" / "backends.md").read_text()
    _, section = page.split("## From vLLM's `LLM`", 1)
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([\w ]+) \|", section, re.MULTILINE)
    return {
        name: verdict.strip() for names, verdict in rows for name in re.findall(r"`(\w+)`", names)
    }
