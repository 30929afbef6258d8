"""The options that commands share: the engine's config and the sampling parameters.

A command takes them as `**options` and reads them with `Options`.
"""

from __future__ import annotations

import inspect
import itertools
import json
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast, get_args, get_origin

import typer
from typer.core import TyperGroup

from _inf.backends.registry import read_config
from _inf.config import Config, parse_assignments
from _inf.request.keywords import KEYWORDS, Keyword, first_sentences
from _inf.request.sampling import check_params
from _inf.runtime.interpreter import interrupt_kept
from _inf.runtime.progress import say

if TYPE_CHECKING:
    from _inf.apps.batch.runner import OnError
    from inf import InferenceEngine

SHOWN_ERRORS = 10
Command = TypeVar("Command", bound=Callable[..., None])

CONFIG_HELP = "A YAML file; without one, the embedded model, greedy, at most 512 tokens."
SAMPLING = {name: row for name, row in KEYWORDS.items() if row.default is not None}


def option_type(keyword: Keyword) -> Any:
    """The type of an option's values: the last of a union."""
    kind = keyword.kind
    return get_args(kind)[-1] if isinstance(kind, types.UnionType) else kind


def takes_options(*, sampling: bool = True) -> Callable[[Command], Command]:
    """Replace `**options` by the engine's and the sampling options in the signature for typer."""
    shared: dict[str, Any] = {
        "config": Annotated[str | None, typer.Option("--config", "-c", help=CONFIG_HELP)],
        "assignments": Annotated[
            list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One config key.")
        ],
    }
    helps = first_sentences()
    for name, keyword in SAMPLING.items() if sampling else ():
        kind, text = option_type(keyword), helps.get(name, "")
        how: dict[str, Any] = {"help": text, "show_default": keyword.default or False}
        if get_origin(kind) is list:
            how["help"] += " May be repeated."
        if get_origin(kind) is dict:
            kind, how["metavar"], how["parser"] = dict, "JSON", _json_object
        shared[name] = Annotated[kind | None, typer.Option(**how)]

    def named(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in shared.items()
        ]
        vars(command)["__signature__"] = signature.replace(parameters=[*own, *more])
        return command

    return named


class Options:
    """The values of the shared options. `params`: the sampling keywords that were set.
    embedded: assignments for the embedded model, which the user's own override."""

    def __init__(self, options: Mapping[str, Any], *embedded: str) -> None:
        self._file: str | None = options["config"]
        self._assignments: list[str] = options["assignments"] or []
        named = any(text.startswith("model_path") for text in self._assignments)
        if self._file is None and not named:
            self._assignments = [*embedded, *self._assignments]
        given = {name: options.get(name) for name in SAMPLING}
        self.params = {name: value for name, value in given.items() if value not in (None, [])}

    def load(self) -> Config:
        """Load the config, and refuse wrong parameters before an engine starts."""
        config = read_config(self._file, parse_assignments(self._assignments))
        check_params(self.params, config.rollout)
        return config

    def start(self) -> InferenceEngine:
        with interrupt_kept():
            from inf import InferenceEngine

            return InferenceEngine(self.load())


def first_errors(item: str, more: str = "") -> OnError:
    """Return a function that prints the first errors of numbered items, then once `more`."""
    counter = itertools.count(1)

    def show(number: int, reason: str) -> None:
        if (count := next(counter)) <= SHOWN_ERRORS:
            say(f"inf: {item} {number}: {reason}")
        elif more and count == SHOWN_ERRORS + 1:
            say(f"inf: {more}")

    return show


class DefaultCommand(TyperGroup):
    """Runs `default_command` if the first argument is no command."""

    default_command: ClassVar[str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {option for param in self.get_params(ctx) for option in param.opts}
        if args and args[0] not in {*self.commands, *own}:
            self.check_default(ctx, args)
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Show the default command's options too."""
        self.commands[self.default_command].format_options(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, each.get_short_help_str(limit=80)) for name, each in self.commands.items()]
            )

    def check_default(self, ctx: Any, args: list[str]) -> None:
        """Refuse what the default command should not get."""


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as failure:
        raise typer.BadParameter(f"{text!r} is not JSON: {failure}.") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{text!r} is not a JSON object.")
    return cast(dict[str, Any], value)
