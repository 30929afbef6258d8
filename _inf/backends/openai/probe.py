"""Finds out at the start, with one to three small requests, which form of requests a server has.

Without a tokenizer the list of models is asked for, which finds a server that is not there and a
wrong key before the first call. With one the first route that answers with token ids is used;
where its answer tells how the server tokenizes a text, that is compared with the tokenizer.
"""

from __future__ import annotations

from typing import Any

from _inf.backends.openai.backend import Form
from _inf.backends.openai.client import Server
from _inf.backends.openai.failures import AccessRefused
from _inf.backends.openai.generate import GenerateForm
from _inf.backends.openai.text import TextForm
from _inf.backends.openai.tokens import TokenForm
from _inf.errors import ConfigError, PromptError, RequestFailure, strip_punctuation
from _inf.types import Tokenizer

PROBE = "The quick brown fox jumps over"
HOT = 2.0  # a temperature at which log probs differ from those at 1
SAME = 1e-4  # of two log probs
REFUSALS = (ConfigError, PromptError, RequestFailure)


async def find_form(server: Server, model: str, tokenizer: Tokenizer) -> Form:
    """Return the form of requests; raises `ConfigError` if none fits to `tokenizer_path`."""
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
                raise ConfigError(
                    f"tokenizer_path: the server reads {PROBE!r} as the tokens {server_ids}, this "
                    f"tokenizer as {ids}; name the tokenizer of the server's model."
                )
            return form
    raise ConfigError(
        f"tokenizer_path: {server.access.base_url} does not take and give token ids "
        f"({'; '.join(reasons)}); leave tokenizer_path out to send it text."
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
