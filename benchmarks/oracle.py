"""Compares what 300 drawn calls give in this tree with what they gave at another commit.

    python benchmarks/oracle.py COMMIT [--only "sglang tools"]

For changes that move code and must change no answer. Both sides run on this machine, with this
environment and the calls of `oracle_calls.py` in this tree; what a commit gave is kept below
`build/oracle/` until those calls change. Equal must be: ids, masks, texts, reasons, and the types
of exceptions; numbers within 1e-6 (of rows with an adapter 1e-5: which of them run in one step
depends on when they arrive). Texts of exceptions and warnings that differ are listed, since
they may be better; they fail only with --messages. Exit code 1 if anything differs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "oracle"
CALLS = ROOT / "benchmarks" / "oracle_calls.py"
SECONDS = 3000.0
WITHIN, WITHIN_ADAPTERS = 1e-6, 1e-5
MESSAGES = ("says", "warned")


def models() -> Path:
    """The file with the folders of the models, which are made if they are missing."""
    sys.path.insert(0, str(ROOT))
    from tests.support.tiny import tiny_model
    from tests.support.tool_calling import TOOL_MODEL
    from tests.support.trained import adapter

    folder = FOLDER / "adapter"
    if not folder.exists():
        adapter(tiny_model(), folder, target_modules=["q_proj", "v_proj", "up_proj"])
    file = FOLDER / "models.json"
    found = {"tiny": str(tiny_model()), "tools": str(TOOL_MODEL), "adapter": str(folder)}
    file.write_text(json.dumps(found))
    return file


def given(tree: Path, out: Path, only: str) -> list[dict[str, Any]]:
    """What the calls give with the `inf` of `tree`."""
    began, unfinished = time.monotonic(), out.with_suffix(".part")
    command = [sys.executable, str(CALLS), str(models()), str(unfinished), only]
    environment = os.environ | {"PYTHONPATH": str(tree), "INF_LOG": "error"}
    subprocess.run(command, cwd=tree, env=environment, check=True, timeout=SECONDS)
    unfinished.rename(out)
    print(f"{out.name}: {time.monotonic() - began:.0f} s", flush=True)
    return read(out)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def at_commit(commit: str, only: str) -> list[dict[str, Any]]:
    """What the calls gave at a commit, which is checked out beside this tree if need be."""
    git = ["git", "-C", str(ROOT)]
    revision = ["rev-parse", "--short=12", f"{commit}^{{commit}}"]
    name = subprocess.run([*git, *revision], check=True, capture_output=True, text=True).stdout
    digest = hashlib.blake2b(CALLS.read_bytes(), digest_size=4).hexdigest()
    kind = f"-{only.replace(' ', '_')}" if only else ""
    out = FOLDER / f"{name.strip()}-{digest}{kind}.jsonl"
    if out.exists():
        return read(out)
    tree = FOLDER / "tree"
    subprocess.run([*git, "worktree", "prune"], check=True)
    subprocess.run([*git, "worktree", "add", "--quiet", "--detach", tree, name.strip()], check=True)
    try:
        return given(tree, out, only)
    finally:
        subprocess.run([*git, "worktree", "remove", "--force", tree], check=True)


def differences(one: Any, other: Any, within: float, place: str = "") -> list[str]:
    """Where two values differ, as sentences."""
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys([*one, *other])
        pairs = [(f"{place}.{name}", one.get(name), other.get(name)) for name in names]
        return [each for where, a, b in pairs for each in differences(a, b, within, where)]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        both = enumerate(zip(one, other, strict=True))
        return [each for n, (a, b) in both for each in differences(a, b, within, f"{place}[{n}]")]
    if isinstance(one, float) or isinstance(other, float):
        numbers = isinstance(one, float | int) and isinstance(other, float | int)
        if numbers and (math.isclose(one, other, rel_tol=0, abs_tol=within) or one != one != other):
            return []
    elif one == other:
        return []
    return [f"{place}: {str(one)[:300]} is now {str(other)[:300]}"]


def main(
    commit: Annotated[str, typer.Argument(help="What to compare with.")],
    only: Annotated[str, typer.Option(help="Only engines whose name has this.")] = "",
    messages: Annotated[bool, typer.Option("--messages", help="Messages must be equal.")] = False,
) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    before = at_commit(commit, only)
    now = {each["name"]: each for each in given(ROOT, FOLDER / "now.jsonl", only)}
    counts: Counter[str] = Counter()
    for old in before:
        new = now.get(old["name"], {})
        found = differences(old, new, WITHIN_ADAPTERS if " adapter " in old["name"] else WITHIN)
        texts = [each for each in found if each.lstrip(".").startswith(MESSAGES)]
        wrong = [each for each in found if messages or each not in texts]
        counts["differ" if wrong else "other message" if texts else "equal"] += 1
        for each in [*wrong, *texts]:
            print(f"{'DIFFERS' if each in wrong else 'message'} {old['name']}{each}")
    print(f"{len(before)} calls: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    raise typer.Exit(1 if counts["differ"] or not before else 0)


if __name__ == "__main__":
    typer.run(main)
