"""`inf eval`: measures a model on rows of verl's form (`evaluate_data.py`), or on a benchmark."""

from __future__ import annotations

import datetime
import hashlib
from pathlib import Path
from typing import Annotated, Any

import typer

from _inf.apps.batch import fingerprint
from _inf.apps.batch.lines import Job
from _inf.apps.batch.output_file import OutputFile
from _inf.apps.batch.runner import RunStats, answer
from _inf.apps.cli.evaluate_compare import compare as compare_command
from _inf.apps.cli.evaluate_data import data as data_command
from _inf.apps.cli.options import DefaultCommand, Options, effective_params, takes_options
from _inf.apps.eval import gsm8k as task
from _inf.apps.eval.report import Run, Summary, plot
from _inf.request.sampling import greedy_unless_asked

DATA = "data"


class Benchmarks(DefaultCommand):
    """Runs `data` if the first argument is not a benchmark: `inf eval DATA`."""

    default_command = DATA


app = typer.Typer(
    cls=Benchmarks,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure a model: inf eval DATA, a file of rows in verl's form, or inf eval gsm8k.",
    subcommand_metavar="DATA | BENCHMARK ...",
)
app.command(DATA)(data_command)
app.command("compare")(compare_command)


@app.command("gsm8k")
@takes_options()
def gsm8k(
    data: Annotated[
        Path | None, typer.Option(help="The problems, as JSON lines; else the Hub's test split.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first LIMIT problems.")] = None,
    shots: Annotated[int, typer.Option(min=0, help="Solved examples before each question.")] = 0,
    shots_from: Annotated[
        Path | None, typer.Option(help="A file of solved examples; else the Hub's train split.")
    ] = None,
    tool: Annotated[bool, typer.Option("--tool", help="Use Gsm8kTool and a calculator.")] = False,
    out: Annotated[Path, typer.Option(help="One row per question.")] = Path("gsm8k.jsonl"),
    restart: Annotated[bool, typer.Option("--restart", help="Empty OUT and start again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
    **options: Any,
) -> None:
    """Answer GSM8K's questions, greedily by default, and score them by four rules.

    Writes OUT.jsonl, OUT.summary.json and OUT.png. After a stop, the same command resumes.
    """
    call = Options(options)
    config, params = call.load(), call.params
    greedy_unless_asked(params)
    every = task.load(data, "test")
    examples = task.examples(every, shots, shots_from)
    jobs = task.jobs(every[:limit], examples, tool=tool)
    about = {
        **fingerprint.of_config(config),
        "parameters": {**params, "timeout": None},
        "data": hashlib.sha256(repr([every, examples, task.SUFFIX]).encode()).hexdigest(),
        "tool": tool,
    }
    rows, speed = _answered(call, jobs, out, about, restart)
    run = Run(
        model=config.model_name,
        data=str(data or task.HUB),
        limit=limit,
        shots=shots,
        tool=tool,
        parameters=effective_params(params, config.rollout),
        date=datetime.date.today().isoformat(),
    )
    _report(out, Summary.of(run, rows, len(jobs), speed), rows, as_json)


def _answered(
    call: Options, jobs: list[Job], out: Path, about: dict[str, Any], restart: bool
) -> tuple[list[dict[str, Any]], float | None]:
    """Answer the jobs without an answer; return all answered rows, and this run's tokens/s."""
    stats = RunStats()
    with OutputFile(out) as file:
        file.begin(about, restart)
        if left := [job for job in jobs if not file.has_answer(job.line)]:
            params = {**call.params, "tools": task.tools()} if about["tool"] else call.params
            with call.start() as engine:
                stats = answer(engine, left, file, params, total=len(left))
        rows = [row for row in file.rows() if "scores" in row and row["line"] <= len(jobs)]
    return rows, stats.tokens_per_second or None


def _report(out: Path, result: Summary, rows: list[dict[str, Any]], as_json: bool) -> None:
    stem = str(out).removesuffix(".jsonl")
    Path(f"{stem}.summary.json").write_text(result.json() + "\n")
    plot(result.run, rows, Path(f"{stem}.png"))
    typer.echo(result.json() if as_json else result.table())
    typer.echo(f"rows, summary and plot: {out}, {stem}.summary.json, {stem}.png", err=True)
    if result.unanswered:
        typer.echo(f'inf: why some are unanswered: "error" in {out}', err=True)
        raise typer.Exit(1)
