"""The options that commands share: which engine, and how it samples.

A command takes them as `**options` and reads them with `Options`. Knows how text from the shell
becomes `generate`'s keywords, and nothing of any command.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import typer

from _inf.config import Config, Rollout, load_config, parse_assignments
from _inf.request.sampling import ANY_MODEL, GenerateParams, check_params, resolve

if TYPE_CHECKING:
    from inf import InferenceEngine

Command = TypeVar("Command", bound=Callable[..., None])

CONFIG_HELP = "A YAML file; without one, the embedded model, greedy, at most 512 tokens."
# `generate`'s keywords under their own names, but for `n`: type, help, what holds without it.
JSON = dict[str, Any]
SAMPLING: Mapping[str, tuple[Any, str, str | None]] = {
    "temperature": (float, "0 is greedy.", "rollout.temperature; 0 when greedy"),
    "top_p": (float, "In (0, 1].", "rollout.top_p"),
    "top_k": (int, "-1: all tokens.", "rollout.top_k"),
    "min_p": (float, "In [0, 1].", "0"),
    "max_tokens": (int, "Tokens to generate at most.", "rollout.response_length"),
    "do_sample": (bool, "Sample, or be greedy.", "rollout.do_sample"),
    "min_tokens": (int, "Tokens to generate at least.", "0"),
    "stop": (list[str], "Ends the answer before it; may be repeated.", None),
    "stop_token_ids": (list[int], "May be repeated.", "the model's EOS"),
    "seed": (int, "The same answer each time.", None),
    "presence_penalty": (float, "In [-2, 2].", "0"),
    "frequency_penalty": (float, "In [-2, 2].", "0"),
    "repetition_penalty": (float, "Above 0; 1 is none.", "1"),
    "logit_bias": (JSON, 'Added to logits: {"TOKEN ID": NUMBER}.', None),
    "json_schema": (str, "What the answer must match, as JSON.", None),
    "regex": (str, "What the answer must match.", None),
    "ignore_eos": (bool, "Go on past EOS.", "rollout.ignore_eos"),
    "skip_special_tokens": (bool, "Leave them out.", "yes"),
    "chat_template_kwargs": (JSON, "For the chat template.", None),
    "truncate_prompt": (str, "left or right: cut what is above prompt_length.", None),
    "timeout": (float, "Seconds for the answer.", None),
}


def takes_options(*, sampling: bool = True) -> Callable[[Command], Command]:
    """Show typer the engine's options, and the sampling ones, in place of `**options`."""
    shared: dict[str, Any] = {
        "config": Annotated[str | None, typer.Option("--config", "-c", help=CONFIG_HELP)],
        "assignments": Annotated[
            list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One config key.")
        ],
    }
    for name, (kind, text, default) in SAMPLING.items() if sampling else ():
        how: dict[str, Any] = {"help": text, "show_default": default or False}
        if kind is JSON:
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
    """What was typed of the shared options. `params`: the sampling keywords that were given."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._file: str | None = options["config"]
        self._assignments: list[str] = options["assignments"] or []
        given = {name: options.get(name) for name in SAMPLING}
        self.params = {name: value for name, value in given.items() if value not in (None, [])}

    @property
    def embedded(self) -> bool:
        """Whether no other model was named."""
        named = any(text.startswith("model_path") for text in self._assignments)
        return self._file is None and not named

    def load(self, *defaults: str) -> Config:
        """The config; refuses, without an engine, what `generate` would refuse. `defaults`:
        assignments that the caller's own go over."""
        config = load_config(self._file, parse_assignments([*defaults, *self._assignments]))
        check_params(self.params, config.rollout)
        return config

    def start(self, *defaults: str) -> InferenceEngine:
        from inf import InferenceEngine

        self.load(*defaults)
        assignments = parse_assignments([*defaults, *self._assignments])
        return InferenceEngine(self._file, **assignments)


def in_force(params: Mapping[str, Any], rollout: Rollout) -> dict[str, Any]:
    """What each sampling keyword of `generate` comes to, given `params` over the config."""
    resolved = resolve(params, rollout, 1, ANY_MODEL).params[0]
    off = {"repetition_penalty": 1.0, "logprobs": 0, "prompt_logprobs": False}
    return {
        name: value
        for name in GenerateParams.__annotations__
        if (value := getattr(resolved, name, None)) not in ([], {}, None)
        and (name not in off or value != off[name])
    }


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as failure:
        raise typer.BadParameter(f"{text!r} is not JSON: {failure}.") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{text!r} is not a JSON object.")
    return cast(dict[str, Any], value)
