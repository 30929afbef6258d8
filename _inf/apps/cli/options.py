"""The options that commands share, the engine's config and the sampling keywords, and options as
dataclasses, so that a command has a few typed parameters in place of a signature of twenty."""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import itertools
import json
from collections.abc import Callable, Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    cast,
    get_origin,
    get_type_hints,
)

import typer
from typer.core import TyperGroup

from _inf.backends.registry import read_config, read_trainers_config
from _inf.config import KEYS, Config, other_names, parse_assignments
from _inf.errors import ConfigError
from _inf.request.effective import check_params
from _inf.request.keyword import Keyword
from _inf.request.keywords import KEYWORDS
from _inf.runtime.interpreter import interrupt_kept
from _inf.runtime.progress import say

if TYPE_CHECKING:
    from _inf.apps.batch.runner import OnError
    from inf import InferenceEngine

SHOWN_ERRORS = 10

CONFIG_HELP = "A YAML file. If it names no model: the embedded one, greedy, at most 512 tokens."
VERL_HELP = "The config of a verl trainer, as Hydra composes it, in place of -c."
MODEL_HELP = "The model: a Hub id, a folder or a .gguf file (the config's model_path)."
SAMPLING = {name: row for name, row in KEYWORDS.items() if row.default is not None}


def takes_options(
    lengths: Mapping[str, int] | None = None, *, sampling: bool = True
) -> Callable[[Callable[..., None]], Any]:
    """Return a decorator that gives a command options for its parameters of two kinds.

    A dataclass has an option for each field; `Options` has the engine's, and with `sampling` one
    for each sampling keyword. lengths: as for `Options`.
    """

    def command_of(function: Callable[..., None]) -> Any:
        parameters: list[inspect.Parameter] = []
        groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        for item in inspect.signature(function, eval_str=True).parameters.values():
            group: Any = item.annotation
            if group is Options:
                options = _shared(SAMPLING if sampling else {})
                group = functools.partial(Options, lengths)
            elif dataclasses.is_dataclass(group):
                options = _fields(group)
            else:
                parameters.append(item)
                continue
            groups[item.name] = group, [option.name for option in options]
            parameters += options

        @functools.wraps(function)
        def command(**values: Any) -> None:
            for name, (group, options) in groups.items():
                values[name] = group(**{option: values.pop(option) for option in options})
            function(**values)

        vars(command)["__signature__"] = inspect.Signature(parameters)
        return command

    return command_of


def _option(name: str, kind: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _fields(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    fields = dataclasses.fields(group)
    return [_option(field.name, kinds[field.name], field.default) for field in fields]


def _shared(keywords: Mapping[str, Keyword]) -> list[inspect.Parameter]:
    """The options of the engine and of sampling keywords."""
    config = typer.Option("--config", "-c", help=CONFIG_HELP)
    verl = typer.Option("--verl", metavar="FILE", help=VERL_HELP)
    model = typer.Option("--model", "-m", help=MODEL_HELP)
    assignments = typer.Option(
        "--set", metavar="KEY=VALUE", help="Set one config key; may be repeated."
    )
    shared = [
        _option("config", Annotated[str | None, config]),
        _option("verl", Annotated[str | None, verl]),
        _option("model", Annotated[str | None, model]),
        _option("assignments", Annotated[list[str] | None, assignments]),
    ]
    for name, keyword in keywords.items():
        kind, text = keyword.value_type, keyword.first_sentence
        how: dict[str, Any] = {"help": text, "show_default": keyword.default or False}
        if keyword.is_list:
            how["help"] += " May be repeated."
        if get_origin(kind) is dict:
            kind, how["metavar"], how["parser"] = dict, "JSON", _json_object
        shared.append(_option(name, Annotated[kind | None, typer.Option(**how)]))
    return shared


def option_instead(option: str) -> str:
    """Say which option has another name of this: another library's, or a config key; else ""."""
    word = option.lstrip("-").replace("-", "_")
    if (name := other_names.KEYWORDS.get(word)) in SAMPLING:
        return f"here it is --{name.replace('_', '-')}"
    paths = [path for path in KEYS if word == path.rpartition(".")[2]]
    key = other_names.KEYS.get(word) or next(iter(paths), "")
    if key == "model_path":
        return "here it is --model"
    return f"here it is --set {key}=VALUE" if key else ""


class Options:
    """The values of the options that commands share. `params`: the sampling keywords that were set.
    lengths: the command's, for those under `rollout` that the user sets nowhere. own_process:
    whether this process was started for the command and has nothing else in it."""

    own_process: ClassVar[bool] = False

    def __init__(
        self,
        lengths: Mapping[str, int] | None,
        config: str | None,
        verl: str | None,
        model: str | None,
        assignments: list[str] | None,
        **sampling: Any,
    ) -> None:
        if config is not None and verl is not None:
            raise ConfigError("--verl: -c is given too; leave one of them out.")
        self._file, self._trainer, self._lengths = config, verl, lengths
        plus = "" if verl is None else "+"  # of Hydra's command lines
        self._overrides = parse_assignments(text.lstrip(plus) for text in assignments or [])
        if model is not None:
            if "model_path" in self._overrides:
                raise ConfigError("--model: --set model_path is given too; leave one of them out.")
            self._overrides["model_path"] = model
        self.params = {name: value for name, value in sampling.items() if value not in (None, [])}

    @property
    def names_an_engine(self) -> bool:
        """Whether any of them says which engine to start."""
        return any((self._file, self._trainer, self._overrides))

    def load(self) -> Config:
        """Load the config, and refuse wrong parameters before an engine starts."""
        if self._trainer is None:
            config = read_config(self._file, self._overrides, self._lengths)
        else:
            config = read_trainers_config(self._trainer, self._overrides)
        check_params(self.params, config.rollout)
        return config

    def start(self) -> InferenceEngine:
        config = self.load()
        if config.source is not None:
            say(f"inf: {config.source}")
        with interrupt_kept():
            from inf import InferenceEngine

            engine = InferenceEngine(config)
        if self.own_process:
            # Nearly all that the process has made so far it keeps. Python would look for garbage
            # among these objects again and again, half a second each time, in which no stream goes
            # on.
            gc.freeze()
        return engine


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
        options = {option for param in self.get_params(ctx) for option in param.opts}
        if args and args[0] not in {*self.commands, *options}:
            self.check_default(ctx, args)
            args = [self.default_command, *args]
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Show the default command's options too."""
        self.commands[self.default_command].format_options(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, command.get_short_help_str(limit=80))
                    for name, command in self.commands.items()
                ]
            )

    def check_default(self, ctx: Any, args: list[str]) -> None:
        """Refuse arguments that the default command should not get."""


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as failure:
        raise typer.BadParameter(f"{text!r} is not JSON: {failure}.") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{text!r} is not a JSON object.")
    return cast(dict[str, Any], value)
