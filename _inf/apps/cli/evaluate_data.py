"""`inf eval DATA`: answers and scores rows of verl's form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from _inf.apps.cli.options import Options, first_errors, takes_options
from _inf.apps.eval.dataset import read_examples
from _inf.apps.eval.evaluate import EvalRun
from _inf.apps.eval.reward import SECONDS


@takes_options()
def data(
    source: Annotated[
        Path, typer.Argument(metavar="DATA", help="Rows of verl's form: .parquet, .jsonl or .json.")
    ],
    reward: Annotated[
        str | None, typer.Option(metavar="FILE.py:NAME", help="A reward function; else verl's.")
    ] = None,
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="Answers per row.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first LIMIT rows.")] = None,
    shuffle_seed: Annotated[int | None, typer.Option(help="Shuffle the rows first.")] = None,
    prompt_key: Annotated[str, typer.Option(help="The key of the prompts.")] = "prompt",
    reward_timeout: Annotated[float, typer.Option(help="Seconds for one reward.")] = SECONDS,
    out: Annotated[Path, typer.Option(help="The stem of the files.")] = Path("eval"),
    restart: Annotated[bool, typer.Option("--restart", help="Start again.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
    **options: Any,
) -> None:
    """Answer each row of DATA, score the answers, and print verl's validation metrics.

    Writes OUT.jsonl, OUT.summary.json and OUT.png. After a stop, the same command resumes.
    """
    call = Options(options)
    config = call.load()
    examples = read_examples(source, prompt_key=prompt_key, limit=limit, shuffle_seed=shuffle_seed)
    run = EvalRun(examples, reward, n, out, call.params, reward_timeout)
    with run.opened(config, restart) as left:
        if left:
            with call.start() as engine:
                run.answer(engine, left, on_error=first_errors("answer"))
    report = run.report(config)
    report.write(run.stem)
    report.plot().savefig(f"{run.stem}.png", dpi=120)
    typer.echo(report.json() if as_json else report.table())
    files = ", ".join(f"{run.stem}{end}" for end in (".jsonl", ".summary.json", ".png"))
    typer.echo(f"rows, summary and plot: {files}", err=True)
    if report.unscored:
        typer.echo(
            f'inf: {report.unscored} answers have no reward: "error" in their rows', err=True
        )
        raise typer.Exit(1)
