"""Connects to a server and starts the backend, from a checked config."""

from __future__ import annotations

import asyncio
import os

from _inf.backends.model_info import tokenizer_only
from _inf.backends.openai.adapters import ServerAdapters
from _inf.backends.openai.backend import OpenAIBackend
from _inf.backends.openai.client import Server
from _inf.backends.openai.failures import Access
from _inf.backends.openai.servers import find
from _inf.config import Config
from _inf.errors import ConfigError
from _inf.request.values import MAX_INT32
from _inf.runtime import quiet
from _inf.runtime.calls import CancelToken
from _inf.runtime.forks import check_start
from _inf.runtime.host import Host
from _inf.types import Limits, ModelInfo


def launch(config: Config) -> OpenAIBackend:
    """Connect; raises `ConfigError` for a wrong key, name or tokenizer, and `EngineDeadError` if no
    server is there."""
    check_start(children=False)
    access = Access(str(config.base_url).rstrip("/"), _key(config.api_key_env), config.api_key_env)
    with quiet.third_party():
        model = _model(config)
    host = Host()

    def build() -> tuple[Server, ServerAdapters]:
        server = Server(access, config.hang_timeout, config.rollout.max_num_seqs)
        adapters = ServerAdapters(server)
        host.keep("connection", _until_end(server, adapters))
        return server, adapters

    server, adapters = host.start(build)
    try:
        found = host.run(find(server, config, model), CancelToken())
    except BaseException:
        host.stop()
        raise
    return found.kind(server, found, adapters, host, model)


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError.of("api_key_env", f"the environment variable {variable} is not set.")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ConfigError.of(
            "api_key_env", f"the value of {variable} has characters that no key has."
        )
    return key


def _model(config: Config) -> ModelInfo:
    """The tokenizer, EOS ids and limits; without `tokenizer_path` nothing is known of them."""
    if config.tokenizer_path is None:
        return ModelInfo(None, frozenset(), Limits(MAX_INT32, MAX_INT32, MAX_INT32))
    return tokenizer_only("tokenizer_path", config.tokenizer_path, config)


async def _until_end(server: Server, adapters: ServerAdapters) -> None:
    """Keep the connections until the host cancels what runs on its loop."""
    async with server.client:
        try:
            await asyncio.Event().wait()
        finally:
            await adapters.unload_all()
