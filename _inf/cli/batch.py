"""`inf batch IN OUT`: a file of prompts to a file of answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from _inf.batch_file import answer_file
from _inf.cli.options import EngineOptions, SamplingOptions, spread
from _inf.errors import ConfigError
from _inf.long_run import Tally
from _inf.record import Fault, Record

SHOWN_FAULTS = 10


@spread
def batch(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", exists=True, dir_okay=False, help="JSON lines: the prompts."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", dir_okay=False, help="The answers.")],
    engine: EngineOptions,
    sampling: SamplingOptions,
    restart: Annotated[bool, typer.Option("--restart", help="Empty OUT and begin anew.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Engines on Ray, a GPU or some cores each.")
    ] = None,
) -> None:
    """Answer each line of IN into OUT; after a kill, the same command goes on.

    A line is {"prompt": ...}, {"messages": [...]} or OpenAI's {"custom_id": ..., "body": ...}, and
    its answer has the same form. What cannot be answered goes to OUT.errors.jsonl with its number,
    and the exit code is 1.
    """
    if out.exists() and out.samefile(source):
        raise ConfigError(f"{out}: it is IN too; name another file for the answers.")
    faults = 0

    def hear(fault: Fault) -> None:
        nonlocal faults
        faults += 1
        if faults <= SHOWN_FAULTS:
            typer.echo(f"inf: {source}, line {fault.line}: {fault.reason}", err=True)

    params = sampling.params()
    with Record(out) as record:
        if workers is None:
            with engine.start() as running:
                tally = answer_file(running, source, record, params, restart=restart, hear=hear)
        else:
            from _inf.ray_run import answer_file_on_ray

            tally = answer_file_on_ray(
                engine.load(), source, record, params, workers=workers, restart=restart, hear=hear
            )
        _report(tally, record)


def _report(tally: Tally, record: Record) -> None:
    done = f", after {record.done} done before" if record.done else ""
    speed = f"{tally.tokens_per_second:.0f} tok/s"
    typer.echo(f"{tally.rows} rows, {tally.tokens} tokens, {speed}{done}", err=True)
    if not record.errors.empty:
        typer.echo(f"inf: lines without an answer are in {record.errors.path}", err=True)
        raise typer.Exit(1)
