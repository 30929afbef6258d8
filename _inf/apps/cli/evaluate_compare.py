"""`inf eval compare`: what differs between two runs on the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from _inf.apps.eval.compare import compare as compare_runs


def compare(
    a: Annotated[Path, typer.Argument(metavar="A.jsonl", help="The rows of a run.")],
    b: Annotated[Path, typer.Argument(metavar="B.jsonl", help="Those of another.")],
    out: Annotated[Path, typer.Option(help="The stem of the files.")] = Path("compare"),
    as_json: Annotated[bool, typer.Option("--json", help="The comparison as JSON.")] = False,
) -> None:
    """Compare two runs of inf eval on the same data: the paired differences B - A.

    Writes OUT.json and OUT.png.
    """
    found = compare_runs(a, b)
    Path(f"{out}.json").write_text(found.json() + "\n", encoding="utf-8")
    found.plot().savefig(f"{out}.png", dpi=120)
    typer.echo(found.json() if as_json else found.table())
    typer.echo(f"comparison and plot: {out}.json, {out}.png", err=True)
