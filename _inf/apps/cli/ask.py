"""`inf "prompt"`: prints the answers to one prompt."""

from __future__ import annotations

import json
import warnings
from typing import Annotated

import typer

from _inf.apps.cli.options import Options, takes_options


@takes_options()
def ask(
    prompt: Annotated[str, typer.Argument(help="The user's message.")],
    n: Annotated[
        int | None, typer.Option("--n", "-n", help="Answers to sample.", show_default="rollout.n")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
    *,
    call: Options,
) -> None:
    """Answer PROMPT."""
    if n is not None:
        call.params["n"] = n
    with call.start() as engine, warnings.catch_warnings(record=True) as caught:
        output = engine.generate(prompt, **call.params)
    for warning in caught:
        typer.echo(f"inf: {warning.message}", err=True)
    for row in output:
        typer.echo(json.dumps(row.to_dict()) if as_json else row.completion)
