"""The command `inf`: one prompt from the shell through the same engine.

Answers go to stdout, everything else to stderr. Exit codes: 0 done, 1 the work failed, 2 the call
was wrong, 130 interrupted.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated, Any

import typer

from _inf.errors import ConfigError, InferenceError, PromptError, ToolError
from _inf.output import GenerationRow
from _inf.sampling import GenerateParams

EXAMPLES = """
Examples:

  inf "What is the capital of France?"

  inf "Write a haiku" --temperature 0.9 --n 3 --json

  inf -c config.yaml --set rollout.dtype=float32 "Explain KV caches"
"""

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    # `--max_tokens`, as the parameter is called in Python, is `--max-tokens`.
    context_settings={
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
    },
)


def _show_version(wanted: bool) -> None:
    if wanted:
        import inf

        typer.echo(f"inf {inf.__version__}")
        raise typer.Exit


@app.command(help="Answer PROMPT with a language model on verl's rollout.\n" + EXAMPLES)
def ask(
    prompt: Annotated[str, typer.Argument(help="The user's message.", show_default=False)],
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="A YAML file; without one, the embedded model."),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One config key.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    top_p: Annotated[float | None, typer.Option(help="In (0, 1].")] = None,
    top_k: Annotated[int | None, typer.Option(help="-1: all tokens.")] = None,
    min_p: Annotated[float | None, typer.Option(help="In [0, 1].")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens to generate at most.")] = None,
    n: Annotated[int | None, typer.Option(help="Answers to sample.")] = None,
    do_sample: Annotated[bool | None, typer.Option(help="Sample, or be greedy.")] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Tokens to generate at least.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Ends the answer before it; may be repeated.")
    ] = None,
    stop_token_ids: Annotated[list[int] | None, typer.Option(help="May be repeated.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same answer each time.")] = None,
    presence_penalty: Annotated[float | None, typer.Option(help="In [-2, 2].")] = None,
    frequency_penalty: Annotated[float | None, typer.Option(help="In [-2, 2].")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="Above 0; 1 is none.")] = None,
    json_schema: Annotated[
        str | None, typer.Option(metavar="JSON", help="What the answer must match.")
    ] = None,
    regex: Annotated[str | None, typer.Option(help="What the answer must match.")] = None,
    ignore_eos: Annotated[bool | None, typer.Option(help="Go on past EOS.")] = None,
    skip_special_tokens: Annotated[bool | None, typer.Option(help="Leave them out.")] = None,
    chat_template_kwargs: Annotated[
        str | None, typer.Option(metavar="JSON", help="For the chat template.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for the answer.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="And exit.")
    ] = False,
) -> None:
    params: GenerateParams = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "max_tokens": max_tokens,
        "n": n,
        "do_sample": do_sample,
        "min_tokens": min_tokens,
        "stop": stop or None,
        "stop_token_ids": stop_token_ids or None,
        "seed": seed,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "repetition_penalty": repetition_penalty,
        "json_schema": json_schema,
        "regex": regex,
        "ignore_eos": ignore_eos,
        "skip_special_tokens": skip_special_tokens,
        "chat_template_kwargs": _json_object(chat_template_kwargs),
        "timeout": timeout,
    }
    from _inf.config import parse_assignments
    from inf import InferenceEngine

    with InferenceEngine(config, **parse_assignments(assignments or [])) as engine:
        output = engine.generate(prompt, **params)
    for row in output:
        typer.echo(_json_line(row) if as_json else row.completion)


def _json_line(row: GenerationRow) -> str:
    fields = dataclasses.asdict(row)
    return json.dumps({name: value for name, value in fields.items() if value is not None})


def _json_object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as failure:
        raise ConfigError(f"chat_template_kwargs: {text!r} is not JSON: {failure}.") from None
    if not isinstance(value, dict):
        raise ConfigError(f"chat_template_kwargs: {text!r} is not a JSON object.")
    return value


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code; the console script."""
    try:
        code = app(args=arguments, prog_name="inf", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except typer.Exit as done:
        return int(done.exit_code)
    except InferenceError as failure:
        typer.echo(f"inf: {failure}", err=True)
        return 2 if isinstance(failure, ConfigError | PromptError | ToolError) else 1
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except Exception as failure:
        return _usage(failure)


def _usage(failure: Exception) -> int:
    """A call that does not parse, in click's words; anything else is a bug and shows itself."""
    show = getattr(failure, "show", None)
    if show is None:
        raise failure
    show(sys.stderr)
    return int(getattr(failure, "exit_code", 2))
