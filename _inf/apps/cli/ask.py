"""`inf "prompt"`: one prompt, its answers on stdout."""

from __future__ import annotations

import json
import warnings
from typing import Annotated

import typer

from _inf.apps.cli.options import EngineOptions, SamplingOptions, spread


@spread
def ask(
    prompt: Annotated[str, typer.Argument(help="The user's message.", show_default=False)],
    engine: EngineOptions,
    sampling: SamplingOptions,
    n: Annotated[
        int | None, typer.Option(help="Answers to sample.", show_default="rollout.n")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
) -> None:
    """Answer PROMPT."""
    params = sampling.params()
    params["n"] = n
    with engine.start(params) as running, warnings.catch_warnings(record=True) as heard:
        output = running.generate(prompt, **params)
    for warning in heard:
        typer.echo(f"inf: {warning.message}", err=True)
    for row in output:
        typer.echo(json.dumps(row.to_dict()) if as_json else row.completion)
