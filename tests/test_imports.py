"""Imports between our modules: no circle, lazy imports included."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import inf

ROOT = Path(inf.__file__).parent
FILES = {"inf": ROOT / "inf.py"} | {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "_inf").rglob("*.py"))
}
# A Ray actor makes the engine that it is.
MAKES_ENGINES = "_inf.apps.ray.worker"


def imported(module: str) -> set[str]:
    """The modules of ours that `module` imports, at its top or later, but not for types alone."""
    tree = ast.parse(FILES[module].read_text())
    found = {name for node in _nodes(tree) for name in _names(node)}
    if module == "inf":
        found |= {f"_inf.apps.{name}" for name in inf.LATER.values()}
    return found & FILES.keys() - {module}


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _nodes(node)


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in FILES else node.module


def reached(start: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def test_no_module_imports_itself_through_others_but_for_the_ray_worker() -> None:
    graph = {module: imported(module) for module in FILES}
    graph[MAKES_ENGINES] -= {"inf"}
    assert {module for module in graph if module in reached(module, graph)} == set()


def test_only_what_makes_engines_imports_the_public_module() -> None:
    users = {module for module in FILES if "inf" in imported(module)}
    assert users - {MAKES_ENGINES} <= {name for name in FILES if name.startswith("_inf.apps.cli")}


def test_apps_take_from_the_folders_below_only_what_these_offer() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    [table] = re.findall(r"^## What the folders offer to apps\n(.*?)^## ", page, re.M | re.S)
    cells = re.findall(r"^\| (`.+?`) \|", table, re.M)
    offered = {f"_inf.{name}" for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}
    apps = {module for module in FILES if module.startswith("_inf.apps")}
    used = set().union(*map(imported, apps)) - apps - {"inf", "_inf"}  # `_inf` has the version
    parts = {name for name in used if name.startswith("_inf.parts.")}
    assert used - parts == offered - {"_inf.parts"} and parts
