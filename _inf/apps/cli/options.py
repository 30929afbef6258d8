"""The options that commands share: which engine, and how it samples.

A command takes them as parameters that are dataclasses; `spread` shows typer their fields. It
knows how text from the shell becomes `generate`'s keywords, and nothing of any command.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from _inf.config import Config, Rollout, load_config, parse_assignments
from _inf.errors import ConfigError
from _inf.request.sampling import ANY_MODEL, GenerateParams, check_params, resolve

if TYPE_CHECKING:
    from inf import InferenceEngine


@dataclasses.dataclass(frozen=True)
class EngineOptions:
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            "-c",
            help="A YAML file; without one, the embedded model, greedy, at most 512 tokens.",
        ),
    ] = None
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One config key.")
    ] = None

    @property
    def embedded(self) -> bool:
        """Whether no other model was named."""
        named = any(each.startswith("model_path") for each in self.assignments or ())
        return self.config is None and not named

    def start(self, params: Mapping[str, Any] | None = None, *defaults: str) -> InferenceEngine:
        """Before anything starts, refuses `params` that `generate` would refuse. `defaults`:
        assignments that the caller's own go over."""
        from inf import InferenceEngine

        given = parse_assignments([*defaults, *(self.assignments or [])])
        if params is not None:
            check_params(params, load_config(self.config, given).rollout)
        return InferenceEngine(self.config, **given)

    def load(self, params: Mapping[str, Any] | None = None) -> Config:
        """What `start` would start; refuses what it would refuse."""
        config = load_config(self.config, parse_assignments(self.assignments or []))
        check_params(params or {}, config.rollout)
        return config


@dataclasses.dataclass(frozen=True)
class SamplingOptions:
    """`generate`'s keywords under their own names, but for `n`."""

    temperature: Annotated[
        float | None,
        typer.Option(help="0 is greedy.", show_default="rollout.temperature; 0 when greedy"),
    ] = None
    top_p: Annotated[
        float | None, typer.Option(help="In (0, 1].", show_default="rollout.top_p")
    ] = None
    top_k: Annotated[
        int | None, typer.Option(help="-1: all tokens.", show_default="rollout.top_k")
    ] = None
    min_p: Annotated[float | None, typer.Option(help="In [0, 1].", show_default="0")] = None
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens to generate at most.", show_default="rollout.response_length"),
    ] = None
    do_sample: Annotated[
        bool | None,
        typer.Option(help="Sample, or be greedy.", show_default="rollout.do_sample"),
    ] = None
    min_tokens: Annotated[
        int | None, typer.Option(help="Tokens to generate at least.", show_default="0")
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(help="Ends the answer before it; may be repeated."),
    ] = None
    stop_token_ids: Annotated[
        list[int] | None, typer.Option(help="May be repeated.", show_default="the model's EOS")
    ] = None
    seed: Annotated[int | None, typer.Option(help="The same answer each time.")] = None
    presence_penalty: Annotated[
        float | None, typer.Option(help="In [-2, 2].", show_default="0")
    ] = None
    frequency_penalty: Annotated[
        float | None, typer.Option(help="In [-2, 2].", show_default="0")
    ] = None
    repetition_penalty: Annotated[
        float | None, typer.Option(help="Above 0; 1 is none.", show_default="1")
    ] = None
    logit_bias: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Added to logits: {"TOKEN ID": NUMBER}.'),
    ] = None
    json_schema: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="What the answer must match."),
    ] = None
    regex: Annotated[str | None, typer.Option(help="What the answer must match.")] = None
    ignore_eos: Annotated[
        bool | None, typer.Option(help="Go on past EOS.", show_default="rollout.ignore_eos")
    ] = None
    skip_special_tokens: Annotated[
        bool | None, typer.Option(help="Leave them out.", show_default="yes")
    ] = None
    chat_template_kwargs: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="For the chat template."),
    ] = None
    truncate_prompt: Annotated[
        str | None, typer.Option(metavar="left|right", help="Cut what is above prompt_length.")
    ] = None
    timeout: Annotated[float | None, typer.Option(help="Seconds for the answer.")] = None

    def params(self) -> GenerateParams:
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        given["stop"] = self.stop or None
        given["stop_token_ids"] = self.stop_token_ids or None
        for name in ("logit_bias", "chat_template_kwargs"):
            given[name] = _json_object(name, given[name])
        return cast(GenerateParams, given)


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


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` as typer reads it: each parameter that is a dataclass gives way to its fields."""
    groups: dict[str, Any] = {}
    shown: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        if not dataclasses.is_dataclass(parameter.annotation):
            shown.append(parameter)
            continue
        groups[parameter.name] = parameter.annotation
        hints = get_type_hints(parameter.annotation, include_extras=True)
        shown += [
            parameter.replace(name=field.name, annotation=hints[field.name], default=field.default)
            for field in dataclasses.fields(parameter.annotation)
        ]

    @functools.wraps(command)
    def run(**given: Any) -> Any:
        for name, group in groups.items():
            own = {field.name: given.pop(field.name) for field in dataclasses.fields(group)}
            given[name] = group(**own)
        return command(**given)

    del run.__dict__["__wrapped__"]  # typer would read the original's signature
    keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in shown]
    vars(run)["__signature__"] = inspect.Signature(keywords)
    run.__annotations__ = {each.name: each.annotation for each in shown}
    return run


def _json_object(name: str, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as failure:
        raise ConfigError(f"{name}: {text!r} is not JSON: {failure}.") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: {text!r} is not a JSON object.")
    return value
