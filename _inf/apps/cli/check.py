"""`inf check`: compares the rollout with Transformers; exit code 1 if they differ."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer

from _inf.apps.check import measure
from _inf.apps.cli.options import Options, takes_options


@takes_options(sampling=False)
def check(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="The default is four built-in prompts.", show_default=False),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="The largest log prob difference allowed, in nats.",
            show_default="0.001 in float32, else 0.2",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    **options: Any,
) -> None:
    """Compare the rollout with Transformers; the exit code is 1 if they differ."""
    with Options(options).start() as engine:
        result = measure(engine, prompts or (), threshold)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(result)))
    else:
        from rich.console import Console

        Console().print(result.table())
    raise typer.Exit(0 if result.passed else 1)
