"""Connects to a server and starts the backend, from a checked config."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any

from _inf.backends.model_info import eos_token_ids, limits_of, with_padding
from _inf.backends.openai.backend import OpenAIBackend
from _inf.backends.openai.client import Server
from _inf.backends.openai.failures import Access
from _inf.backends.openai.find_form import find_form
from _inf.config import Config
from _inf.errors import ConfigError, error_text
from _inf.request.values import MAX_INT32
from _inf.runtime import quiet
from _inf.runtime.fork import check_start
from _inf.runtime.host import Host
from _inf.types import CancelToken, Limits, ModelInfo, Tokenizer


def launch(config: Config) -> OpenAIBackend:
    """Connect; raises `ConfigError` for a wrong key, name or tokenizer, and `EngineDeadError` if no
    server is there."""
    check_start(children=False)
    access = Access(str(config.base_url).rstrip("/"), _key(config.api_key_env), config.api_key_env)
    with quiet.third_party():
        model = _model(config)
    host = Host()

    def build() -> Server:
        server = Server(access, config.hang_timeout, config.rollout.max_num_seqs)
        host.keep("connection", _until_end(server))
        return server

    server = host.start(build)
    try:
        form = host.run(find_form(server, config, model), CancelToken())
    except BaseException:
        host.stop()
        raise
    return OpenAIBackend(server, form, host, model)


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
    """The tokenizer and what is known beside it; nothing of it without `tokenizer_path`."""
    if config.tokenizer_path is None:
        return ModelInfo(None, frozenset(), Limits(MAX_INT32, MAX_INT32, MAX_INT32))
    path, trusted = config.tokenizer_path, {"trust_remote_code": config.trust_remote_code}
    try:
        tokenizer = with_padding(_tokenizer(path, trusted))
    except Exception as failure:
        raise ConfigError.of(
            "tokenizer_path",
            f"Transformers cannot load a tokenizer from {path}: {error_text(failure)}.",
        ) from failure
    from transformers import GenerationConfig

    vocabulary, generation = len(tokenizer), None
    with contextlib.suppress(Exception):  # a folder of the tokenizer alone has neither
        vocabulary = _vocabulary(path, trusted) or vocabulary
    with contextlib.suppress(Exception):
        generation = GenerationConfig.from_pretrained(path)
    eos = eos_token_ids(generation, tokenizer)
    return ModelInfo(tokenizer, eos, limits_of(config, vocabulary))


def _tokenizer(path: str, trusted: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer. One whose class or model this Transformers does not know is read from its
    tokenizer.json, which has all but its class's own Python code."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    try:
        return AutoTokenizer.from_pretrained(path, **trusted)
    except Exception as failure:
        if "trust_remote_code" in str(failure):  # it has code of its own, which may not be run
            raise
        with contextlib.suppress(Exception):  # of the two failures the first says what is missing
            more = get_tokenizer_config(path).get("extra_special_tokens")
            # Transformers 5 writes a list there, and 4.57 wants a dict.
            listed = {"extra_special_tokens": {}, "additional_special_tokens": more}
            given = listed if isinstance(more, list) else {}
            return PreTrainedTokenizerFast.from_pretrained(path, **given)
        raise


def _vocabulary(path: str, trusted: Mapping[str, Any]) -> int | None:
    """The width of the model's logits, which may be more than the tokenizer's tokens."""
    from transformers import AutoConfig, PretrainedConfig

    try:
        given = AutoConfig.from_pretrained(path, **trusted).get_text_config().to_dict()
    except Exception:  # a model that this Transformers does not know
        given, _ = PretrainedConfig.get_config_dict(path)
        given = given.get("text_config", given)
    size: int | None = given.get("vocab_size")
    return size


async def _until_end(server: Server) -> None:
    """Keep the connections until the host cancels what runs on its loop."""
    async with server.client:
        await asyncio.Event().wait()
