"""`inf batch IN OUT`: answers a file of prompts into another file."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from _inf.apps.batch import fingerprint
from _inf.apps.batch.lines import check_custom_ids, parse, unsampled_ids
from _inf.apps.batch.output_file import OutputFile
from _inf.apps.batch.runner import Keep, answer_each, keep_in, unanswered
from _inf.apps.cli.options import Options, first_errors, takes_options
from _inf.apps.configured_code import default_loop_depends
from _inf.apps.ray.run import answer_on_ray
from _inf.apps.tally import Tally
from _inf.runtime.files import check_output, rereadable
from _inf.runtime.progress import say

if TYPE_CHECKING:
    from inf import InferenceEngine


@takes_options()
def batch(
    source: Annotated[
        Path,
        typer.Argument(metavar="IN", exists=True, dir_okay=False, help="JSON lines: the prompts."),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", dir_okay=False, help="The answers.")],
    restart: Annotated[bool, typer.Option("--restart", help="Empty OUT and start again.")] = False,
    rollouts: Annotated[
        bool, typer.Option("--rollouts", help="Write ids, log probs and texts, for inf show.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of engines on Ray.")] = None,
    *,
    call: Options,
) -> None:
    """Answer each line of IN into OUT; the same command resumes where it stopped.

    A line is {"prompt": ...}, {"messages": [...]} or OpenAI's {"custom_id": ..., "body": ...}, and
    its answer has the same form, or with --rollouts the form of docs/rollouts.md. A line that
    cannot be answered gets a row with an "error", and the exit code is 1; the same command tries
    such lines again.
    """
    check_output(out, inputs=[source])
    config, params = call.load(), call.params
    with rereadable(source) as lines, OutputFile(out, [source]) as file:
        check_custom_ids(lines, source)
        asked = {"parameters": {**params, "timeout": None}, "rollouts": rollouts}
        depends = {**default_loop_depends(config), **fingerprint.of_config(config), **asked}
        file.begin({**depends, "input": fingerprint.of_file(lines)}, restart)
        before, left = file.answered, sum(1 for _ in unanswered(lines, file))
        on_error = first_errors(f"{source}, line", f"more lines have errors; all are in {out}")
        tally, waiting = Tally(before + left, before, before), unanswered(lines, file)
        keep = keep_in(file, tally, on_error)
        try:
            if left and workers:
                with tally.showing():
                    answer_on_ray(config, waiting, params, keep, workers, rollouts)
            elif left:
                with call.start() as engine, tally.showing():
                    _answer_here(engine, waiting, params, keep, rollouts)
        except KeyboardInterrupt:
            say(f"inf: stopped; the same command resumes with the lines that {out} lacks")
            raise
        rows = file.rows() if config.rollout.agent.default else ()
        unsampled = list(filter(None, map(unsampled_ids, rows)))
    _report(tally, file, before, unsampled)


def _answer_here(
    engine: InferenceEngine,
    lines: Iterable[tuple[int, bytes]],
    params: Mapping[str, object],
    keep: Keep,
    rollouts: bool,
) -> None:
    about = engine.config.model_name, engine.tokenizer
    jobs = (parse(text, line, *about, rollouts=rollouts) for line, text in lines)
    asyncio.run(answer_each(engine, jobs, params, keep))


def _report(tally: Tally, file: OutputFile, before: int, unsampled: Sequence[int]) -> None:
    if tally.rows:
        done = f", {before} answered earlier" if before else ""
        typer.echo(f"{tally.rows} lines{tally.speed}{done}", err=True)
    else:
        typer.echo(f"nothing left to do: {before} lines were answered earlier", err=True)
    if unsampled:
        typer.echo(
            f"inf: {len(unsampled)} answers of agent loops have {sum(unsampled)} ids with a wrong "
            "mask (unsampled_ids in their rows); a trainer would learn from ids that the model "
            "did not sample: docs/agent_loops.md",
            err=True,
        )
    if file.failed:
        lines = "1 line has" if file.failed == 1 else f"{file.failed} lines have"
        typer.echo(f'inf: {lines} an "error" in {file.path}', err=True)
        raise typer.Exit(1)
