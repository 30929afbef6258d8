"""`inf check`: compares the rollout with a reference and with itself; exit code 1 if it fails."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from _inf.apps.check.measure import BATCH, MAX_TOKENS, check
from _inf.apps.cli.options import Options, takes_options


@takes_options(sampling=False)
def check_engine(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="The default is four built-in prompts.", show_default=False),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="A trainer's batch with old_log_probs: .safetensors, or a DataProto's file of "
            "your own (a pickle). The default is Transformers.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows that are sampled in one call.")] = BATCH,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a row.")] = MAX_TOKENS,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="The largest log prob difference allowed, in nats.",
            show_default="see docs/parity.md",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the differences into this file.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    **options: Any,
) -> None:
    """Compare the rollout with Transformers or a trainer's log probs, and with itself.

    The exit code is 1 if they differ.
    """
    with Options(options).start() as engine:
        size = {"max_tokens": max_tokens, "batch": batch}
        report = check(engine, prompts=prompts, against=against, threshold=threshold, **size)
    if plot is not None:
        report.plot().savefig(plot, dpi=120)
    if as_json:
        typer.echo(report.json())
    else:
        from rich.console import Console

        Console().print(report.table())
    raise typer.Exit(0 if report.passed else 1)
