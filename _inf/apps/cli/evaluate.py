"""`inf eval`: measures a model on rows of verl's form or a benchmark, and compares two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from _inf.apps.cli.evaluate_data import PRESET_COMMANDS, data
from _inf.apps.cli.options import DefaultCommand
from _inf.apps.eval.compare import compare as compare_runs


class Benchmarks(DefaultCommand):
    """Runs `data` if the first argument is no other command: `inf eval DATA`."""

    default_command = "data"


app = typer.Typer(
    cls=Benchmarks,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure a model: inf eval DATA, a file of rows in verl's form, or a benchmark.",
    subcommand_metavar="DATA | BENCHMARK | compare ...",
)
app.command(Benchmarks.default_command)(data)
for name, command in PRESET_COMMANDS.items():
    app.command(name)(command)


@app.command()
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
