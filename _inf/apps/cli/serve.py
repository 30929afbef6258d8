"""`inf serve`: serves a model over HTTP until SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from _inf.apps.cli.options import Options, takes_options
from _inf.errors import ConfigError, InferenceError

if TYPE_CHECKING:
    from _inf.apps.serve.server import InferenceServer

WAIT_SECONDS = 0.2


@takes_options(sampling=False)
def serve(
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, help="The port; 0 takes a free one.")] = 8000,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The environment variable with the key that requests must send.",
        ),
    ] = None,
    adapter_folder: Annotated[
        Path | None,
        typer.Option(help="Requests may load LoRA adapters from folders below it."),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Also write the traces of sessions to this file, for inf show.",
        ),
    ] = None,
    *,
    call: Options,
) -> None:
    """Serve a model over HTTP, for the openai client (docs/serving.md).

    An address that other machines can reach needs --api-key-env. After SIGTERM, running requests
    have at most 20 seconds to finish.
    """
    from _inf.apps.rollouts.traces import check_trace_file
    from _inf.apps.serve.access import check_address

    api_key = None if api_key_env is None else os.environ.get(api_key_env, "")
    if api_key == "":
        raise ConfigError(f"--api-key-env: the environment variable {api_key_env} is not set.")
    check_address(host, port, api_key)
    if traces is not None:
        check_trace_file(traces)
    address = (host, port, api_key, adapter_folder, traces)
    with call.start() as engine, engine.serve(*address) as server:
        model = engine.config.model_name
        _wait_for_the_end(server, f"inf: {model} is served at {server.base_url}")


def _wait_for_the_end(server: InferenceServer, said: str) -> None:
    terminated: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: terminated.append(number))
    typer.echo(said, err=True)
    while server.running and not terminated:
        time.sleep(WAIT_SECONDS)
    if not terminated:
        raise InferenceError("serve: the server has stopped.")
