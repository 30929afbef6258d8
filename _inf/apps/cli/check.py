"""`inf check` compares the rollout with a reference and with itself; `inf check turns` renders a
conversation by three paths. The exit code is 1 if they differ."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from _inf.apps.check.measure import BATCH, MAX_TOKENS, check
from _inf.apps.check.turns_conversation import read_conversation
from _inf.apps.check.turns_report import compare_paths, read_model
from _inf.apps.cli.options import DefaultCommand, Options, takes_options
from _inf.errors import ConfigError

if TYPE_CHECKING:
    from _inf.apps.check.records.report import RecordsReport
    from _inf.apps.check.report import CheckReport


class CheckCommands(DefaultCommand):
    default_command = "rollout"

    def parse_args(self, ctx: object, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or [self.default_command])


check_app = typer.Typer(
    cls=CheckCommands,
    rich_markup_mode=None,
    help="Compare the rollout with Transformers or a trainer's log probs, and with itself:\ninf "
    "check [PROMPTS]. Or compare three renderings of a conversation: inf check turns.",
    subcommand_metavar="[PROMPTS] | turns ...",
)


@dataclasses.dataclass(frozen=True)
class RecordsOptions:
    """The options for a trainer's records, which are compared without an engine."""

    records: Annotated[
        Path | None,
        typer.Option(
            help="Instead, compare two log probs of each token of a trainer's records, without an "
            "engine: a .jsonl, .safetensors or .pt file, or a folder of them (docs/records.md). "
            "With --model or -c, score --batch of them again."
        ),
    ] = None
    sides: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="The keys of --records with the log probs: the rollout's, the trainer's.",
            show_default="the known ones",
        ),
    ] = None

    def report(
        self, records: Path, call: Options, batch: int, threshold: float | None
    ) -> RecordsReport:
        from _inf.apps.check.records.measure import check_records
        from _inf.apps.check.records.reading import read_records

        names = None if self.sides is None else self._names(self.sides)
        found = read_records(records, names)
        with call.start() if call.names_an_engine else contextlib.nullcontext() as engine:
            return check_records(found, engine=engine, batch=batch, threshold=threshold)

    def _names(self, sides: str) -> tuple[str, str]:
        first, _, second = (name.strip() for name in sides.partition(","))
        if not first or not second or "," in second:
            raise ConfigError(f"--sides: expected two keys, such as A,B, not {sides!r}.")
        return first, second


@check_app.command(CheckCommands.default_command)
@takes_options(sampling=False)
def check_engine(
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="The default is four built-in prompts."),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            help="A trainer's batch with old_log_probs: .safetensors, or a file that you saved "
            "from a DataProto (a pickle). The default is Transformers.",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="How many rows to sample, in one call.")
    ] = BATCH,
    max_tokens: Annotated[int, typer.Option(min=1, help="The most tokens of a row.")] = MAX_TOKENS,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="The largest log prob difference allowed, in nats.",
            show_default="see docs/parity.md",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    *,
    of_file: RecordsOptions,
    call: Options,
) -> None:
    """Compare the rollout with Transformers or a trainer's log probs, and with itself; or two sides
    of a trainer's records.

    The exit code is 1 if they differ.
    """
    if of_file.records is not None:
        if prompts or against or max_tokens != MAX_TOKENS:
            raise ConfigError("--records: leave out PROMPTS, --against and --max-tokens.")
        _print(of_file.report(of_file.records, call, batch, threshold), as_json)
    if of_file.sides is not None:
        raise ConfigError("--sides: it names keys of --records FILE.")
    with call.start() as engine:
        size = {"max_tokens": max_tokens, "batch": batch}
        report = check(engine, prompts=prompts, against=against, threshold=threshold, **size)
    _print(report, as_json)


def _print(report: CheckReport | RecordsReport, as_json: bool) -> NoReturn:
    if as_json:
        typer.echo(report.json())
    else:
        Console().print(report.table())
    raise typer.Exit(0 if report.passed else 1)


@check_app.command()
@takes_options(sampling=False)
def turns(
    conversation: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONVERSATION.json",
            help='A list of messages, or {"messages": [...], "tools": [...]}. The default is '
            "built in: a system message, a tool and thinking.",
        ),
    ] = None,
    template: Annotated[
        Path | None,
        typer.Option(help="A chat template (.jinja) in place of the tokenizer's."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    *,
    call: Options,
) -> None:
    """Compare three renderings of a conversation: its chat template as a whole, this rollout turn
    by turn, and verl's builder. Starts no engine.

    The exit code is 1 if they differ.
    """
    config = call.load()
    talk = None if conversation is None else read_conversation(conversation)
    report = compare_paths(read_model(config, template), config, talk)
    typer.echo(report.json() if as_json else report.text())
    raise typer.Exit(0 if report.passed else 1)
