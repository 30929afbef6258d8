"""`inf lm-eval`: the command of lm-evaluation-harness, with the model "inf"."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import typer

from _inf.errors import ConfigError

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def lm_eval(context: typer.Context) -> None:
    """Run lm_eval --model inf ARGUMENTS, for releases without plugins (docs/evaluation.md)."""
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError("lm-eval is not installed: pip install 'inf-engine[lm-eval]'")
    from lm_eval.__main__ import cli_evaluate

    importlib.import_module("_inf.apps.lm_eval")  # registers the model
    before = sys.argv
    sys.argv = ["lm_eval", "run", "--model", "inf", *context.args]
    try:
        cli_evaluate()
    finally:
        sys.argv = before
