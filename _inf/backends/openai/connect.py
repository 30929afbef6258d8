"""Connects to a server and starts the backend, from a checked config."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

from _inf.backends.model_info import eos_token_ids, limits_of, with_padding
from _inf.backends.openai.backend import Form, OpenAIBackend
from _inf.backends.openai.client import Server
from _inf.backends.openai.failures import Access, AccessRefused
from _inf.backends.openai.text import TextForm
from _inf.backends.openai.tokens import GenerateForm, TokenForm
from _inf.config import Config
from _inf.errors import ConfigError, PromptError, RequestFailure, error_text, strip_punctuation
from _inf.request.values import MAX_INT32
from _inf.runtime import quiet
from _inf.runtime.fork import check_start
from _inf.runtime.host import Host
from _inf.types import CancelToken, Limits, ModelInfo, Tokenizer

PROBE = "The quick brown fox jumps over"
HOT = 2.0  # a temperature at which log probs differ from those at 1
SAME = 1e-4  # of two log probs
REFUSALS = (ConfigError, PromptError, RequestFailure)


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
        work = find_form(server, str(config.model_path), model.tokenizer)
        form = host.run(work, CancelToken())
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
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    path, trusted = config.tokenizer_path, {"trust_remote_code": config.trust_remote_code}
    try:
        tokenizer = with_padding(AutoTokenizer.from_pretrained(path, **trusted))
    except Exception as failure:
        raise ConfigError.of(
            "tokenizer_path",
            f"Transformers cannot load a tokenizer from {path}: {error_text(failure)}.",
        ) from failure
    vocabulary, generation = len(tokenizer), None
    with contextlib.suppress(Exception):  # a folder of the tokenizer alone has neither
        vocabulary = AutoConfig.from_pretrained(path, **trusted).get_text_config().vocab_size
        generation = GenerationConfig.from_pretrained(path)
    eos = eos_token_ids(generation, tokenizer)
    return ModelInfo(tokenizer, eos, limits_of(config, vocabulary))


async def _until_end(server: Server) -> None:
    """Keep the connections until the host cancels what runs on its loop."""
    async with server.client:
        await asyncio.Event().wait()


async def find_form(server: Server, model: str, tokenizer: Tokenizer) -> Form:
    """Find out with one to three small requests which form of requests the server has; raises
    `ConfigError` if none fits to the tokenizer.

    Without a tokenizer the list of models is asked for, which finds a server that is not there and
    a wrong key before the first call. With one the first route that answers with token ids is used;
    where its answer tells how the server tokenizes a text, that is compared with the tokenizer.
    """
    if tokenizer is None:
        try:
            await server.look("/models")
        except AccessRefused:
            raise
        except REFUSALS:  # a server may lack the route
            pass
        return TextForm(model)
    ids = list(tokenizer(PROBE)["input_ids"])
    reasons = []
    for attempt in (_token_form, _generate_form):
        try:
            form, server_ids = await attempt(server, model, ids)
        except AccessRefused:
            raise
        except REFUSALS as refusal:
            reasons.append(strip_punctuation(refusal))
        except (AttributeError, IndexError, KeyError, TypeError):
            reasons.append("it answers in an unknown form")
        else:
            if server_ids not in (None, ids, len(ids)):
                raise ConfigError.of(
                    "tokenizer_path",
                    f"the server reads {PROBE!r} as the tokens {server_ids}, this "
                    f"tokenizer as {ids}; name the tokenizer of the server's model.",
                )
            return form
    raise ConfigError.of(
        "tokenizer_path",
        f"{server.access.base_url} does not take and give token ids "
        f"({'; '.join(reasons)}); leave tokenizer_path out to send it text.",
    )


async def _token_form(server: Server, model: str, ids: list[int]) -> tuple[Form, Any]:
    """Return the form of /completions, and the server's ids of the probe."""
    one = {"model": model, "max_tokens": 1, "logprobs": 0, "return_token_ids": True}
    answer = await server.ask("/completions", {**one, "prompt": PROBE, "temperature": 0})
    if not (choice := answer["choices"][0]).get("token_ids"):
        raise ConfigError("/completions returns no token_ids")
    hot = {**one, "prompt": ids, "temperature": HOT, "top_k": 1}  # the same token
    second = (await server.ask("/completions", hot))["choices"][0]
    logprobs = [each["logprobs"]["token_logprobs"][0] for each in (choice, second)]
    tempered = max(logprobs) < -SAME and abs(logprobs[0] - logprobs[1]) > SAME
    own = answer.get("prompt_token_ids") or choice.get("prompt_token_ids")
    return TokenForm(model, tempered=tempered), own


async def _generate_form(server: Server, model: str, ids: list[int]) -> tuple[Form, Any]:
    """Return the form of /generate, and how many tokens the server's ids of the probe are."""
    form = GenerateForm(server.access.base_url.removesuffix("/v1"))
    one = {"text": PROBE, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    answer = await server.ask(form.url, one)
    if not answer.get("output_ids"):
        raise ConfigError("/generate returns no output_ids")
    return form, (answer.get("meta_info") or {}).get("prompt_tokens")
