"""`inf eval`: measures a model on rows of verl's form or a benchmark, and compares two runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from _inf.apps.cli.options import DefaultCommand, Options, first_errors, takes_options
from _inf.apps.eval import gsm8k, reasoning_tasks
from _inf.apps.eval.benchmarks import NAMED, benchmark_of
from _inf.apps.eval.compare import compare_runs
from _inf.apps.eval.dataset import read_examples
from _inf.apps.eval.environments import factory_of_file
from _inf.apps.eval.reward import SECONDS, RewardPool
from _inf.apps.eval.run import EvalRun
from _inf.apps.eval.tracking import check_tracker, global_step, log_metrics
from _inf.backends.registry import describe
from _inf.errors import ConfigError
from _inf.models.adapters import adapter_folder
from _inf.runtime.progress import say

if TYPE_CHECKING:
    from inf import InferenceEngine

PLOT = typer.Option(help="Draw them into this file.", show_default=False)


class EvalCommands(DefaultCommand):
    default_command = "data"


eval_app = typer.Typer(
    cls=EvalCommands,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure a model: inf eval DATA, a file of rows in verl's form, or a benchmark:\n"
    f"{NAMED}.",
    subcommand_metavar="DATA | BENCHMARK | compare ...",
)


@eval_app.command(EvalCommands.default_command)
@takes_options()
def data(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help=f"Rows of verl's form (.parquet, .jsonl, .json), or a benchmark: {NAMED}.",
        ),
    ],
    prompt_key: Annotated[str, typer.Option(help="The key of the prompts.")] = "prompt",
    file: Annotated[
        Path | None,
        typer.Option("--data", help="A benchmark's problems, as on the Hub; else the Hub's."),
    ] = None,
    shots: Annotated[
        int, typer.Option(min=0, help="gsm8k: solved examples before each question.")
    ] = 0,
    shots_from: Annotated[
        Path | None,
        typer.Option(help="gsm8k: a file of solved examples; else the Hub's train split."),
    ] = None,
    tool: Annotated[
        bool, typer.Option("--tool", help="gsm8k: use Gsm8kTool and a calculator.")
    ] = False,
    size: Annotated[
        int | None,
        typer.Option(
            min=1, help="rg: questions of each task.", show_default=str(reasoning_tasks.SIZE)
        ),
    ] = None,
    data_seed: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=reasoning_tasks.MAX_SEED,
            help="rg: the seed of the questions.",
            show_default=str(reasoning_tasks.SEED),
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The stem of the files.", show_default="eval, or the benchmark's name"),
    ] = None,
    plot: Annotated[Path | None, PLOT] = None,
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py[:NAME]", help="A reward function, compute_score of FILE; else verl's."
        ),
    ] = None,
    agent_loop: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="verl's agent loop of rows without an agent_name."),
    ] = None,
    environment: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="A factory of environments, as TRL's."),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(metavar="NAME=PATH", help="The LoRA adapter that answers, and its folder."),
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
        str | None, typer.Option(metavar="TRACKER", help="wandb, mlflow, trackio or tensorboard.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The summary as JSON.")] = False,
    **options: Any,
) -> None:
    """Answer each row of DATA, score the answers, and print verl's validation metrics.

    Writes OUT.jsonl and OUT.summary.json. After a stop, the same command resumes, also with a
    higher LIMIT. With another reward function it scores the stored answers again.
    """
    call = Options(options)
    config = call.load()
    if log is not None:
        check_tracker(log)
    if agent_loop is not None:
        if tool:
            raise ConfigError("--tool: an agent loop has its own tools; leave one of the two out.")
        call.params["agent_loop"] = agent_loop
    if environment is not None:
        call.params["environment_factory"] = factory_of_file(environment)
    folder = None
    if adapter is not None:
        call.params["adapter"], folder = _adapter(adapter, remote=describe(config).remote)
    benchmark = benchmark_of(source, file, shots, shots_from, tool, size, data_seed)
    run = EvalRun(
        read_examples(benchmark.rows, prompt_key=prompt_key, shuffle_seed=shuffle_seed),
        benchmark.name,
        out or benchmark.out,
        config,
        call.params | ({"tools": gsm8k.tools()} if tool else {}),
        RewardPool(benchmark.reward if reward is None else reward, reward_timeout, reward_workers),
        n=n,
        limit=limit,
        rescore=rescore,
        restart=restart,
        adapter_folder=folder,
    )

    @contextlib.contextmanager
    def start() -> Iterator[InferenceEngine]:
        with call.start() as engine:
            if folder is not None:
                engine.load_adapter(call.params["adapter"], folder)
            yield engine

    report = run.run(start, first_errors("answer"), lambda text: say(f"inf: {text}"))
    if plot is not None:
        report.plot().savefig(plot, dpi=120)
    typer.echo(report.json() if as_json else report.table())
    typer.echo(f"rows and summary: {run.stem}.jsonl, {run.stem}.summary.json", err=True)
    if log is not None:
        log_metrics(log, report, run.stem.name, global_step(config.model_path))
    if report.unsampled_ids:
        see = f"inf show {run.stem}.jsonl marks them"
        typer.echo(f"inf: {report.unsampled()} {see}.", err=True)
    if report.unscored:
        typer.echo(
            f'inf: {report.unscored} answers have no reward: "error" in their rows says why; the '
            "same command tries them again, and keeps the answers that are there",
            err=True,
        )
        raise typer.Exit(1)


def _adapter(assignment: str, *, remote: bool) -> tuple[str, Path]:
    """The adapter's name and its folder, which is of the server's machine if it is `remote`."""
    name, _, path = assignment.partition("=")
    if not (name and path):
        raise ConfigError(
            f"--adapter: {assignment!r} is not NAME=PATH, such as mine=adapters/mine."
        )
    return name, Path(path) if remote else adapter_folder(Path(path).expanduser(), "adapter")


@eval_app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A.jsonl", help="The rows of a run.")],
    b: Annotated[Path, typer.Argument(metavar="B.jsonl", help="Those of another.")],
    out: Annotated[Path, typer.Option(help="The stem of the JSON file.")] = Path("compare"),
    plot: Annotated[Path | None, PLOT] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The comparison as JSON.")] = False,
) -> None:
    """Compare two runs of inf eval on the same data: the paired differences B - A.

    Writes OUT.json.
    """
    found = compare_runs(a, b)
    Path(f"{out}.json").write_text(found.json() + "\n", encoding="utf-8")
    if plot is not None:
        found.plot().savefig(plot, dpi=120)
    typer.echo(found.json() if as_json else found.table())
    typer.echo(f"comparison: {out}.json", err=True)
