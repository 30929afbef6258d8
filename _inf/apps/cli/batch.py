"""`inf batch IN OUT`: a file of prompts to a file of answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from _inf.apps.batch.run import answer_file, begin
from _inf.apps.batch.run_files import Fault, RunFiles
from _inf.apps.batch.runner import RunStats
from _inf.apps.cli.options import EngineOptions, SamplingOptions, spread
from _inf.errors import ConfigError
from _inf.runtime.progress import say

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
    config = engine.load()
    params = {name: value for name, value in sampling.params().items() if value is not None}
    with RunFiles(out) as record:
        total = begin(record, config, source, params, restart)
        hear = _warnings(source, record)
        try:
            if record.done >= total:
                tally = RunStats(0, 0, 0.0)
            elif workers is None:
                with engine.start() as running:
                    tally = answer_file(running, source, record, params, total=total, hear=hear)
            else:
                from _inf.apps.ray.run import answer_file_on_ray

                tally = answer_file_on_ray(
                    config, source, record, params, workers=workers, total=total, hear=hear
                )
        except KeyboardInterrupt:
            typer.echo(f"inf: stopped; the same command goes on after what {out} has", err=True)
            raise
        _report(tally, record, total)


def _warnings(source: Path, record: RunFiles) -> Callable[[Fault], None]:
    """Tells of the first refused lines, and where the others are."""
    told = itertools.count(1)

    def hear(fault: Fault) -> None:
        if (number := next(told)) <= SHOWN_FAULTS:
            say(f"inf: {source}, line {fault.line}: {fault.reason}")
        elif number == SHOWN_FAULTS + 1:
            say(f"inf: more lines are refused; all are in {record.errors.path}")

    return hear


def _report(tally: RunStats, record: RunFiles, total: int) -> None:
    if record.done >= total:
        typer.echo(f"nothing left to do: {total} of {total} lines were done before", err=True)
    else:
        done = f", after {record.done} done before" if record.done else ""
        speed = f"{tally.tokens_per_second:.0f} tok/s"
        typer.echo(f"{tally.rows} rows, {tally.tokens} tokens, {speed}{done}", err=True)
    if not record.errors.empty:
        refused = sum(1 for _ in record.errors.rows())
        lines = "1 line has" if refused == 1 else f"{refused} lines have"
        typer.echo(f"inf: {lines} no answer: see {record.errors.path}", err=True)
        raise typer.Exit(1)
