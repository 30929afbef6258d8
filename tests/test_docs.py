"""The pages that are made from the code, and those that are held to it."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from _inf.config import Config, load_config
from _inf.errors import ConfigError

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def paths(tree: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name, value in tree.items():
        yield f"{above}{name}"
        if isinstance(value, dict):
            yield from paths(value, f"{above}{name}.")


# ── docs/config.md ───────────────────────────────────────────────────────────────────────────────


def test_page_of_config_keys_has_every_key(hooks: ModuleType) -> None:
    assert hooks.KEYS_GO_HERE in (DOCS / "config.md").read_text()
    listed = {path for path, _, _ in hooks.config_keys()}
    assert listed >= set(paths(Config().to_dict())) - {"rollout.engine_kwargs.sglang"}
    page = hooks.keys_page()
    for path in listed:
        assert f"`{path.rpartition('.')[2]}`" in page or f"## `{path}`" in page, path


def test_page_of_config_keys_says_type_bounds_and_default(hooks: ModuleType) -> None:
    rows = [line for line in hooks.keys_page().splitlines() if line.startswith("| `")]
    (row,) = (row for row in rows if row.startswith("| `gpu_memory_utilization`"))
    assert "number, above 0, below 1" in row and "`0.5`" in row
    (row,) = (row for row in rows if row.startswith("| `hang_timeout`"))
    assert "or null" in row and "`600.0`" in row


def test_lists_in_docstrings_become_lists_and_prose_stays_prose(hooks: ModuleType) -> None:
    text = (
        "Does it.\n\nfirst: a thing\n    and more of it:\n    inner: deeper\nsecond, third: others\n"
        "After them.\n\nIn prose a line may begin with a\nword: and a colon."
    )
    assert hooks.as_markdown(text).split("\n") == [
        "Does it.",
        "",
        "",
        "- **first**: a thing and more of it:",
        "",
        "    - **inner**: deeper",
        "- **second, third**: others",
        "",
        "After them.",
        "",
        "",
        "In prose a line may begin with a word: and a colon.",
    ]
