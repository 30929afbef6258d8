"""`inf eval`: measures a model on rows of verl's form or a benchmark, and compares two runs."""

from __future__ import annotations

import typer

from _inf.apps.cli.evaluate_compare import compare
from _inf.apps.cli.evaluate_data import PRESET_COMMANDS, data
from _inf.apps.cli.options import DefaultCommand

DATA = "data"


class Benchmarks(DefaultCommand):
    """Runs `data` if the first argument is no other command: `inf eval DATA`."""

    default_command = DATA


app = typer.Typer(
    cls=Benchmarks,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure a model: inf eval DATA, a file of rows in verl's form, or a benchmark.",
    subcommand_metavar="DATA | BENCHMARK | compare ...",
)
app.command(DATA)(data)
for name, command in PRESET_COMMANDS.items():
    app.command(name)(command)
app.command("compare")(compare)
