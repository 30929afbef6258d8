"""`inf lm-eval`: lm-evaluation-harness on an engine. Its own client of OpenAI's completions,
`local-completions`, asks a server in this process.

Written against release 0.4.13 (`lm_eval/_cli/`, `lm_eval/models/api_models.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer

from _inf.apps.cli.options import start_engine
from _inf.backends.registry import read_config
from _inf.config import Config, parse_assignments
from _inf.errors import ConfigError, InferenceError
from _inf.runtime.extras import require

if TYPE_CHECKING:
    from _inf.apps.serve.server import InferenceServer
    from inf import InferenceEngine

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
OF_THE_CLIENT = ("max_gen_toks",)  # of the keys in --model_args; the others are the config's
LOOPBACK = "127.0.0.1"
MOST_ROWS, MOST_TOKENS = 512, 1_000_000  # of one request, whose answer has log probs of all
SECONDS = 10**6  # for a request


def lm_eval(context: typer.Context) -> None:
    """Run lm-evaluation-harness, with ARGUMENTS of `lm_eval run` (docs/evaluation.md)."""
    require("lm-eval")
    from lm_eval._cli import HarnessCLI
    from lm_eval.utils import setup_logging
    from requests import HTTPError

    setup_logging()
    harness = HarnessCLI()
    arguments = _parsed(harness, context.args)
    config, own = _config(arguments)
    with start_engine(config) as engine, engine.serve(LOOPBACK) as server:
        client = client_arguments(engine, server, getattr(arguments, "apply_chat_template", False))
        batch_size = client.pop("batch_size")
        if not str(getattr(arguments, "batch_size", "auto")).isdigit():
            arguments.batch_size = batch_size
        arguments.model, arguments.model_args = "local-completions", own | client
        _reach_directly(LOOPBACK)
        try:
            harness.execute(arguments)
        except HTTPError as failure:
            if not str(failure.request and failure.request.url).startswith(server.base_url):
                raise  # of a data set's
            refusal = json.loads(failure.response.text)["error"]["message"]
            raise InferenceError(f"lm-eval: {refusal}") from failure


def _reach_directly(host: str) -> None:
    """Without a proxy that the environment names for all hosts."""
    names = ("no_proxy", "NO_PROXY")
    os.environ["no_proxy"] = ",".join([*filter(None, map(os.environ.get, names)), host])


def _parsed(harness: Any, arguments: Sequence[str]) -> argparse.Namespace:
    before = sys.argv
    sys.argv = ["lm_eval", "run", *arguments]
    try:
        parsed: argparse.Namespace = harness.parse_args()
    finally:
        sys.argv = before
    if parsed.model not in (None, "inf"):
        raise ConfigError(f"--model: it is this engine; name {parsed.model} to lm_eval itself.")
    return parsed


def _config(arguments: argparse.Namespace) -> tuple[Config, dict[str, Any]]:
    """The engine's config, of `--model_args` and the harness's own file (`--config`), and what of
    these is the client's.

    All tokens of a row but one may be its prompt's: each request says how many the answer may have,
    and the harness cuts contexts that leave no room for them.
    """
    from lm_eval.config.evaluate_config import EvaluatorConfig

    of_file: dict[str, Any] = {}
    if arguments.config:
        of_file = EvaluatorConfig.load_yaml_config(arguments.config).get("model_args") or {}
    keys = {**of_file, **(arguments.model_args or {})}
    own = {name: keys.pop(name) for name in OF_THE_CLIENT if name in keys}
    source = keys.pop("config", None)
    for name in ("device", "trust_remote_code"):
        keys |= {name: value} if (value := getattr(arguments, name, None)) else {}
    config = read_config(source, parse_assignments(f"{key}={keys[key]}" for key in keys))
    rollout = config.rollout
    total = rollout.max_model_len or rollout.prompt_length + rollout.response_length
    lengths = {"prompt_length": total - 1, "response_length": 1}
    rollout = rollout.model_copy(update=lengths)
    if not lengths.keys() <= config.rollout.model_fields_set:  # then a shorter model shortens them
        rollout.model_fields_set.difference_update(lengths)
    return config.model_copy(update={"rollout": rollout}), own


def client_arguments(
    engine: InferenceEngine, server: InferenceServer, rendered: str | bool = False
) -> dict[str, Any]:
    """The arguments of `local-completions`. rendered: contexts are texts of the chat template."""
    total = engine.model.limits.total
    return {
        "model": engine.config.model_name,
        "base_url": f"{server.base_url}/completions",
        "tokenizer_backend": "huggingface",
        "tokenizer": str(engine.model_folder),
        "trust_remote_code": engine.config.trust_remote_code,
        "add_bos_token": _adds_special_tokens(engine.tokenizer, rendered=bool(rendered)),
        "max_length": total,
        "batch_size": max(1, min(MOST_ROWS, MOST_TOKENS // total)),
        "max_retries": 1,
        "timeout": SECONDS,
    }


def _adds_special_tokens(tokenizer: Any, *, rendered: bool) -> bool:
    """Whether the tokenizer shall begin a context with its BOS token, as in the harness's own
    Transformers backend: not if the chat template has written it."""
    if not tokenizer("")["input_ids"]:
        return False
    message = {"role": "user", "content": "?"}
    return not rendered or not tokenizer.apply_chat_template([message], tokenize=False).startswith(
        tokenizer.bos_token
    )
