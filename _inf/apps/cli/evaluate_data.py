"""`inf eval DATA` answers and scores rows of verl's form, `inf eval NAME` those of a benchmark."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from _inf.apps.cli.options import Options, first_errors, takes_options
from _inf.apps.eval import gsm8k as school
from _inf.apps.eval.dataset import read_examples
from _inf.apps.eval.evaluate import EvalRun
from _inf.apps.eval.presets import PRESETS, preset_rows
from _inf.apps.eval.reward import SECONDS
from _inf.apps.eval.tracking import check_tracker, global_step, log_metrics
from _inf.runtime.progress import say

FILE = Annotated[
    Path | None, typer.Option("--data", help="The problems, as on the Hub; else the Hub's.")
]
OUT = Annotated[Path, typer.Option(help="The stem of the files.")]


def _evaluate(
    rows: Callable[[], Any],
    name: str,
    out: Path,
    prompt_key: str = "prompt",
    tools: list[Any] | None = None,
    *,
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py[:NAME]", help="A reward function, compute_score of FILE; else verl's."
        ),
    ] = None,
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="Answers per row.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first LIMIT rows.")] = None,
    shuffle_seed: Annotated[int | None, typer.Option(help="Shuffle the rows first.")] = None,
    reward_timeout: Annotated[float, typer.Option(help="Seconds for one reward.")] = SECONDS,
    reward_workers: Annotated[
        int | None,
        typer.Option(
            min=0, help="Processes that call it; 0: this one.", show_default="cores, <= 8"
        ),
    ] = None,
    rescore: Annotated[bool, typer.Option("--rescore", help="Score stored answers again.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Start again, without them.")] = False,
    log: Annotated[
        str | None,
        typer.Option(metavar="TRACKER", help="wandb, mlflow, trackio or tensorboard."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
    **options: Any,
) -> None:
    """Evaluate, write the files and print. rows: called for what `read_examples` reads when the
    options are checked. name: of the data. The keywords are options of every command here."""
    call = Options(options)
    config, params = call.load(), call.params | ({"tools": tools} if tools else {})
    if log is not None:
        check_tracker(log)
    examples = read_examples(rows(), prompt_key=prompt_key, shuffle_seed=shuffle_seed)
    how = (reward_timeout, limit, reward_workers, rescore)
    run = EvalRun(examples, name, reward, n, out, params, *how)
    report = run.run(
        config, call.start, restart, first_errors("answer"), lambda text: say(f"inf: {text}")
    )
    report.write(run.stem)
    report.plot().savefig(f"{run.stem}.png", dpi=120)
    typer.echo(report.json() if as_json else report.table())
    files = ", ".join(f"{run.stem}{end}" for end in (".jsonl", ".summary.json", ".png"))
    typer.echo(f"rows, summary and plot: {files}", err=True)
    if log is not None:
        log_metrics(log, report, run.stem.name, global_step(config.model_path))
    if report.unscored:
        typer.echo(
            f'inf: {report.unscored} answers have no reward: "error" in their rows says why; the '
            "same command tries them again, and keeps the answers that are there",
            err=True,
        )
        raise typer.Exit(1)


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Replace `**options` by the keywords of `_evaluate`, the engine's and the sampling options."""
    shared = inspect.signature(_evaluate, eval_str=True).parameters.values()
    signature = inspect.signature(function, eval_str=True)
    *own, rest = signature.parameters.values()
    keywords = [each for each in shared if each.kind is each.KEYWORD_ONLY]
    vars(function)["__signature__"] = signature.replace(parameters=[*own, *keywords, rest])
    return takes_options()(function)


@_command
def data(
    source: Annotated[
        Path, typer.Argument(metavar="DATA", help="Rows of verl's form: .parquet, .jsonl or .json.")
    ],
    prompt_key: Annotated[str, typer.Option(help="The key of the prompts.")] = "prompt",
    out: OUT = Path("eval"),
    **options: Any,
) -> None:
    """Answer each row of DATA, score the answers, and print verl's validation metrics.

    Writes OUT.jsonl, OUT.summary.json and OUT.png. After a stop, the same command resumes, also
    with a higher LIMIT. With another reward function it scores the stored answers again.
    """
    _evaluate(lambda: source, str(source), out, prompt_key, **options)


def preset(name: str) -> Callable[..., None]:
    """Make the command of a benchmark."""

    def command(file: FILE = None, out: OUT = Path(name), **options: Any) -> None:
        _evaluate(lambda: preset_rows(name, file), str(file or hub), out, **options)

    hub = PRESETS[name].hub
    command.__doc__ = f"Answer the problems of {hub}, and score them as verl does."
    return _command(command)


@_command
def gsm8k(
    file: FILE = None,
    out: OUT = Path("gsm8k"),
    shots: Annotated[int, typer.Option(min=0, help="Solved examples before each question.")] = 0,
    shots_from: Annotated[
        Path | None, typer.Option(help="A file of solved examples; else the Hub's train split.")
    ] = None,
    tool: Annotated[bool, typer.Option("--tool", help="Use Gsm8kTool and a calculator.")] = False,
    **options: Any,
) -> None:
    """Answer GSM8K's questions, and score them by four rules."""

    def rows() -> list[dict[str, Any]]:
        problems = school.load(file, "test")
        return school.rows(problems, school.examples(problems, shots, shots_from), tool=tool)

    name = str(file or school.HUB) + (f", {shots} examples before each" if shots else "")
    options["reward"] = options["reward"] or school.compute_score
    _evaluate(rows, name, out, tools=school.tools() if tool else None, **options)


PRESET_COMMANDS = {"gsm8k": gsm8k} | {name: preset(name) for name in PRESETS}
