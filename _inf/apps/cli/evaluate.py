"""`inf eval`: a model's accuracy on a benchmark."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from _inf.apps.batch import fingerprint
from _inf.apps.batch.run_files import RunFiles
from _inf.apps.batch.runner import answer, calls_at_once
from _inf.apps.cli.options import EngineOptions, SamplingOptions, in_force, spread
from _inf.apps.eval import gsm8k as task
from _inf.apps.eval.report import Run, Summary, plot, summary
from _inf.request.sampling import ASK_TO_SAMPLE

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Measure a model: inf eval gsm8k"
)


@app.callback()
def _benchmarks() -> None:
    """Measure a model: inf eval gsm8k."""


@app.command("gsm8k")
@spread
def gsm8k(
    engine: EngineOptions,
    sampling: SamplingOptions,
    data: Annotated[
        Path | None, typer.Option(help="The problems, as JSON lines; else the Hub's test split.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The first so many problems.")] = None,
    shots: Annotated[int, typer.Option(min=0, help="Solved examples before each question.")] = 0,
    shots_from: Annotated[
        Path | None, typer.Option(help="Their file; else the Hub's train split.")
    ] = None,
    tool: Annotated[bool, typer.Option("--tool", help="With Gsm8kTool and a calculator.")] = False,
    out: Annotated[Path, typer.Option(help="A row for each question.")] = Path("gsm8k.jsonl"),
    restart: Annotated[bool, typer.Option("--restart", help="Empty OUT and begin anew.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
) -> None:
    """Answer GSM8K's questions, greedily by default, and score them by four rules.

    Writes OUT.jsonl, OUT.summary.json and OUT.png. After a kill, the same command goes on.
    """
    params = _greedy_by_default(sampling)
    engine.load(params)
    every = task.load(data, "test")
    examples = task.examples(every, shots, shots_from)
    problems = every[:limit]
    with RunFiles(out) as record, engine.start() as running:
        about = {
            **fingerprint.of_engine(running),
            "parameters": {**params, "timeout": None},
            "data": _digest([every, examples, task.SUFFIX]),
            "tool": tool,
        }
        record.begin(about, restart)
        tally = answer(
            running,
            task.jobs(problems, examples, tool=tool),
            record,
            {**params, "tools": task.tools()} if tool else params,
            at_once=calls_at_once(running),
            total=len(problems),
        )
        rows = [row for row in record.out.rows() if row["problem"] < len(problems)]
    run = Run(
        model=running.config.model_name,
        data=str(data or task.HUB),
        limit=limit,
        shots=shots,
        tool=tool,
        parameters=in_force(params, running.config.rollout),
        date=datetime.date.today().isoformat(),
    )
    found = summary(run, rows, len(problems) - len(rows), tally.tokens_per_second or None)
    _report(out, found, rows, as_json)
    if found.unanswered:
        typer.echo(f"inf: why some are unanswered: {record.errors.path}", err=True)
        raise typer.Exit(1)


def _greedy_by_default(sampling: SamplingOptions) -> dict[str, Any]:
    params = {name: value for name, value in sampling.params().items() if value is not None}
    if not {"do_sample", *ASK_TO_SAMPLE} & params.keys():
        params["temperature"] = 0.0
    return params


def _report(out: Path, found: Summary, rows: list[dict[str, Any]], as_json: bool) -> None:
    stem = str(out.with_suffix("") if out.suffix == ".jsonl" else out)
    text = json.dumps(dataclasses.asdict(found), indent=1)
    Path(f"{stem}.summary.json").write_text(text + "\n")
    plot(found.run, rows, Path(f"{stem}.png"))
    typer.echo(text if as_json else found.table())
    typer.echo(f"rows, summary and plot: {out}, {stem}.summary.json, {stem}.png", err=True)


def _digest(value: Any) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
