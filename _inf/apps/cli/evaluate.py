"""`inf eval`: measures a model on rows of verl's form or a benchmark, and compares two runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from _inf.apps.cli.options import DefaultCommand, Options, first_errors, takes_options
from _inf.apps.eval.benchmarks import NAMED, BenchmarkOptions, data_of
from _inf.apps.eval.compare import compare_runs
from _inf.apps.eval.environments import factory_of_file
from _inf.apps.eval.eval_report import EvalReport
from _inf.apps.eval.run import EvalRun, EvalSettings
from _inf.backends.registry import describe
from _inf.errors import ConfigError
from _inf.models.adapters import adapter_folder
from _inf.runtime.files import check_output, write_text
from _inf.runtime.progress import say

if TYPE_CHECKING:
    from inf import InferenceEngine


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


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """The options of `inf eval` that are neither a benchmark's nor `evaluate`'s settings."""

    out: Annotated[
        Path | None,
        typer.Option(
            help="The files' name, without an ending.", show_default="eval, or the benchmark's name"
        ),
    ] = None
    reward: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.py[:NAME]",
            help="The reward function in FILE, by default compute_score; without it, verl's.",
        ),
    ] = None
    agent_loop: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="verl's agent loop, for rows without an agent_name."),
    ] = None
    environment: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:NAME", help="A factory of environments, as in TRL."),
    ] = None
    adapter: Annotated[
        str | None,
        typer.Option(metavar="NAME=PATH", help="The LoRA adapter that answers, and its folder."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False

    def params(self) -> dict[str, object]:
        """Return the keywords of `generate` for an agent loop or environments."""
        params: dict[str, object] = {}
        if self.agent_loop is not None:
            params["agent_loop"] = self.agent_loop
        if self.environment is not None:
            params["environment_factory"] = factory_of_file(self.environment)
        return params


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
    *,
    benchmark: BenchmarkOptions,
    settings: EvalSettings,
    options: EvalOptions,
    call: Options,
) -> None:
    """Answer each row of DATA, score the answers, and print verl's validation metrics.

    Writes OUT.jsonl and OUT.summary.json. After a stop, the same command resumes, also with a
    higher LIMIT. With another reward function it scores the stored answers again.
    """
    config = call.load()
    params, adapter = call.params | options.params(), None
    if options.adapter is not None:
        adapter = _adapter(options.adapter, remote=describe(config).remote)
        params["adapter"], _ = adapter
    asked = data_of(source, benchmark, options.reward)
    asked = dataclasses.replace(asked, stem=options.out or asked.stem)
    run = EvalRun(asked, settings, config, params, adapter and adapter[1])
    start = partial(_started, call, adapter)
    report = run.run(start, first_errors("answer"), lambda text: say(f"inf: {text}"))
    typer.echo(report.json() if options.as_json else report.table())
    typer.echo(f"rows and summary: {run.rows}, {run.summary}", err=True)
    _report_faults(report, run.rows)


@contextlib.contextmanager
def _started(call: Options, adapter: tuple[str, Path] | None) -> Iterator[InferenceEngine]:
    with call.start() as engine:
        if adapter is not None:
            engine.load_adapter(*adapter)
        yield engine


def _report_faults(report: EvalReport, rows: Path) -> None:
    if report.unsampled_ids:
        typer.echo(f"inf: {report.unsampled()} inf show {rows} marks them.", err=True)
    if report.unscored:
        typer.echo(
            f'inf: {report.unscored} answers have no reward: "error" in their rows says why; the '
            "same command tries them again, and keeps the stored answers",
            err=True,
        )
        raise typer.Exit(1)


def _adapter(assignment: str, *, remote: bool) -> tuple[str, Path]:
    """Return the adapter's name and its folder, which is on the server's machine if `remote`."""
    name, _, path = assignment.partition("=")
    if not (name and path):
        raise ConfigError(
            f"--adapter: {assignment!r} is not NAME=PATH, such as mine=adapters/mine."
        )
    return name, Path(path) if remote else adapter_folder(Path(path).expanduser(), "adapter")


@eval_app.command()
def compare(
    a: Annotated[
        Path, typer.Argument(metavar="A", help="The rows of a run: a file, or a trainer's folder.")
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The rows of another run.")],
    out: Annotated[Path, typer.Option(help="The stem of the JSON file.")] = Path("compare"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
    reward: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which of a trainer's scores or other keys to compare."),
    ] = None,
) -> None:
    """Compare two runs on the same data: the paired differences B - A.

    A and B are files of inf eval, or files or folders of a trainer's samples (docs/your_run.md);
    folders are compared at each step that both have, and a file with each step of a folder. Writes
    OUT.json; an existing one is overwritten.
    """
    file = Path(f"{str(out).removesuffix('.json')}.json")
    check_output(file, "--out", [a, b])
    comparison = compare_runs(a, b, reward)
    write_text(file, comparison.json() + "\n", "--out")
    typer.echo(comparison.json() if as_json else comparison.table())
    typer.echo(f"comparison: {file}", err=True)
