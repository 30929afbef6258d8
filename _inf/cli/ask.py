"""`inf "prompt"`: one prompt, its answers on stdout."""

from __future__ import annotations

import dataclasses
import json
import warnings
from typing import Annotated

import typer

from _inf.cli.options import EngineOptions, SamplingOptions, spread
from _inf.output import GenerationRow


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
        typer.echo(json_line(row) if as_json else row.completion)


def json_line(row: GenerationRow) -> str:
    """A row with the fields that its call gave it."""
    fields = dataclasses.asdict(row)
    return json.dumps({name: value for name, value in fields.items() if value is not None})
