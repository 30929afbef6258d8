"""The command `inf`: answers a prompt or runs a command; each command is a file of this folder.

Answers go to stdout, everything else to stderr. Exit codes: 0 done, 1 the work failed, 2 the call
was wrong, 130 interrupted.
"""

from __future__ import annotations

import atexit
import difflib
import gc
import io
import sys
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from _inf import __version__
from _inf.apps.cli.ask import ask
from _inf.apps.cli.batch import batch
from _inf.apps.cli.chat import chat
from _inf.apps.cli.check import check_app
from _inf.apps.cli.evaluate import eval_app
from _inf.apps.cli.options import DefaultCommand, Options, option_instead
from _inf.apps.cli.serve import serve
from _inf.apps.cli.show import show
from _inf.errors import (
    ConfigError,
    InferenceError,
    PromptError,
    ToolError,
    strip_punctuation,
    value_fault,
)
from _inf.runtime.extras import STACK, installed

# After \\b lines are shown as they are.
EXAMPLES = """
Examples:

\b
  inf "What is the capital of France?"
  inf "Write a haiku" --temperature 0.9 --n 3 --json
  inf -c config.yaml --set rollout.dtype=float32 "Explain KV caches"
  inf chat --system "You are a pirate."
  inf batch prompts.jsonl answers.jsonl --max-tokens 256
  inf eval gsm8k --limit 200 --max-tokens 256
  inf check
  inf check turns conversation.json
  inf serve --port 8000
  inf show eval.jsonl
  inf --version
"""
ASK = "ask"
NEAR = 0.75  # similarity by difflib: one letter of four may be wrong


class Commands(DefaultCommand):
    default_command = ASK

    def check_default(self, ctx: Any, args: list[str]) -> None:
        """Refuse a command after its options, or a misspelt one, as a prompt."""
        if "--" in args:
            return
        word, place = args[0], ""
        if word.startswith("-"):
            place = " The command must be the first word."
            word = self.commands[ASK].make_parser(ctx).parse_args(list(args))[0].get("prompt") or ""
        if near := difflib.get_close_matches(word, self.commands, n=1, cutoff=NEAR):
            ctx.fail(
                f"did you mean inf {near[0]} ...?{place} To ask the model {word!r}, write: "
                f"inf ask {word}"
            )


app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    options_metavar="[OPTIONS]",
    subcommand_metavar="PROMPT | COMMAND ...",
    # `--max_tokens`, as in Python, is accepted for `--max-tokens`.
    context_settings={
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
    },
    help="Answer PROMPT with a language model on verl's rollout, or run a COMMAND.\n"
    + EXAMPLES
    + "\nA prompt that is the name of a command: inf ask chat, or inf -- chat."
    + "\n\nA default such as (rollout.top_p) is the value of that config key.",
)
app.command(ASK)(ask)
app.command("chat")(chat)
app.command("batch")(batch)
app.add_typer(eval_app, name="eval")
app.add_typer(check_app, name="check")
app.command("serve")(serve)
app.command("show")(show)


def _show_version(wanted: bool) -> None:
    if wanted:
        stack = (f"{name} {installed(name) or '(not installed)'}" for name in STACK)
        typer.echo(f"inf {__version__} with {', '.join(stack)}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the versions."),
    ] = False,
) -> None:
    pass


def _skip_the_last_collection() -> None:
    """At its end Python looks for garbage among a million objects of imports, for three seconds.
    Not skipped with a Triton that nanobind binds (3.9 is one): it would print what is left."""
    library: Any = sys.modules.get("triton._C.libtriton")
    if library is not None and type(library.ir.attribute).__module__ == "nanobind":
        gc.unfreeze()
    else:
        gc.freeze()


def _show_all_characters() -> None:
    """Where stdout's encoding, such as latin-1, lacks a character, print its number."""
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper) and stdout.errors == "strict":
        stdout.reconfigure(errors="backslashreplace")


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code; the console script, which gives no arguments."""
    Options.own_process = arguments is None
    if Options.own_process:
        _show_all_characters()
    atexit.register(_skip_the_last_collection)
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
        show_usage = getattr(failure, "show", None)  # click's, for a wrong call; else it is a bug
        if show_usage is None:
            raise
        if isinstance(failure.__cause__, ValidationError):
            fault = value_fault(failure.__cause__.errors()[0])
            vars(failure)["message"] = f"{strip_punctuation(fault)}."
        unknown = getattr(failure, "option_name", "") if hasattr(failure, "possibilities") else ""
        if instead := option_instead(unknown):
            vars(failure).update(message=f"{failure}; {instead}", possibilities=None)
        show_usage(sys.stderr)
        return int(getattr(failure, "exit_code", 2))
