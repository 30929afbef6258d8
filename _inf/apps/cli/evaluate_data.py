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
from _inf.apps.eval.eval_report import EvalReport
from _inf.apps.eval.evaluate import EvalRun
from _inf.apps.eval.presets import PRESETS, preset_rows
from _inf.apps.eval.reward import SECONDS
from _inf.apps.eval.tracking import check_tracker, global_step, log_metrics

FILE = Annotated[
    Path | None, typer.Option("--data", help="The problems, as on the Hub; else the Hub's.")
]
OUT = Annotated[Path, typer.Option(help="The stem of the files.")]


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
    out: OUT = Path("eval"),
    restart: Annotated[bool, typer.Option("--restart", help="Start again.")] = False,
    log: Annotated[
        str | None,
        typer.Option(metavar="TRACKER", help="wandb, mlflow, trackio or tensorboard."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
    **options: Any,
) -> None:
    """Answer each row of DATA, score the answers, and print verl's validation metrics.

    Writes OUT.jsonl, OUT.summary.json and OUT.png. After a stop, the same command resumes, also
    with a higher LIMIT.
    """
    call = Options(options)
    config = call.load()
    if log is not None:
        check_tracker(log)
    params = call.params | ({"tools": options["tools"]} if options.get("tools") else {})
    name = options.get("name") or str(source)
    examples = read_examples(source, prompt_key=prompt_key, shuffle_seed=shuffle_seed)
    run = EvalRun(examples, name, reward, n, out, params, reward_timeout, limit)
    with run.opened(config, restart) as left:
        if left:
            with call.start() as engine:
                run.answer(engine, left, on_error=first_errors("answer"))
    report = run.report(config)
    _write(report, run.stem, as_json)
    if log is not None:
        log_metrics(log, report, run.stem.name, global_step(config.model_path))
    if report.unscored:
        typer.echo(
            f'inf: {report.unscored} answers have no reward: "error" in their rows says why; the '
            "same command asks for them again",
            err=True,
        )
        raise typer.Exit(1)


def _write(report: EvalReport, stem: Path, as_json: bool) -> None:
    report.write(stem)
    report.plot().savefig(f"{stem}.png", dpi=120)
    typer.echo(report.json() if as_json else report.table())
    files = ", ".join(f"{stem}{end}" for end in (".jsonl", ".summary.json", ".png"))
    typer.echo(f"rows, summary and plot: {files}", err=True)


def preset(name: str) -> Callable[..., None]:
    """Make the command of a benchmark: `data`, on its rows."""

    def command(file: FILE = None, out: OUT = Path(name), **options: Any) -> None:
        Options(options).load()  # refuses wrong ones before the problems are downloaded
        rows: Any = preset_rows(name, file)
        data(rows, name=str(file or hub), out=out, prompt_key="prompt", **options)

    hub = PRESETS[name].hub
    command.__doc__ = f"Answer the problems of {hub}, and score them as verl does."
    return _with_options_of_data(command)


def gsm8k(
    file: FILE = None,
    out: OUT = Path("gsm8k"),
    shots: Annotated[int, typer.Option(min=0, help="Solved examples before each question.")] = 0,
    shots_from: Annotated[
        Path | None, typer.Option(help="A file of solved examples; else the Hub's train split.")
    ] = None,
    tool: Annotated[bool, typer.Option("--tool", help="Use Gsm8kTool and a calculator.")] = False,
    reward: Any = None,
    **options: Any,
) -> None:
    """Answer GSM8K's questions, and score them by four rules."""
    Options(options).load()
    problems = school.load(file, "test")
    solved = school.examples(problems, shots, shots_from)
    rows: Any = school.rows(problems, solved, tool=tool)
    options["tools"] = school.tools() if tool else None
    options["name"] = str(file or school.HUB) + (f", {shots} examples before each" if shots else "")
    reward = reward or school.compute_score
    data(rows, reward=reward, out=out, prompt_key="prompt", **options)


def _with_options_of_data(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `data`'s options in place of `**options`."""
    own = inspect.signature(command, eval_str=True).parameters
    shared = inspect.signature(data).parameters
    names = [name for name in shared if name not in {"source", "prompt_key", "out"}]
    mine = [each for name, each in own.items() if name not in {*names, "options"}]
    parameters = [*mine, *(shared[name] for name in names)]
    keyword = inspect.Parameter.KEYWORD_ONLY
    vars(command)["__signature__"] = inspect.Signature(
        [each.replace(kind=keyword) for each in parameters]
    )
    return command


PRESET_COMMANDS = {"gsm8k": _with_options_of_data(gsm8k)} | {name: preset(name) for name in PRESETS}
