"""The Python of the README and of docs/tools.md, run as it stands, on the tiny model."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import inf
from inf import InferenceEngine

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/tools.md"])
def test_python_of_the_page_runs(
    page: str, tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inf, "InferenceEngine", lambda: contextlib.nullcontext(tiny))
    names: dict[str, Any] = {"engine": tiny}
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)
    assert blocks
    for block in blocks:
        code = compile(block, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    assert names["output"].metadata
