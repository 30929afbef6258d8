"""Turns each failure between the client and a server into one exception of ours.

`ConfigError` and `PromptError`: the server refuses it. `EngineDeadError`: no server is there.
`RequestFailure`: one request could not be answered. No message has the key in it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

import openai

from _inf.backends.openai.http import httpx
from _inf.errors import (
    ConfigError,
    EngineDeadError,
    InferenceError,
    PromptError,
    RequestFailure,
    error_text,
    strip_punctuation,
)

MAX_CHARACTERS = 500  # of a server's words
PROMPT_KEYS = ("messages", "prompt", "input", "input_ids", "text")
BUSY = (408, 409, 429)


class AccessRefused(ConfigError):
    """The server refuses the key, or wants one."""


def prompt_name(index: int | None) -> str:
    return "the prompt" if index is None else f"prompt {index}"


@dataclasses.dataclass(frozen=True)
class Access:
    """Where the server is, and the key for it; `key_env` is the variable that holds the key."""

    base_url: str
    key: str = dataclasses.field(default="", repr=False)
    key_env: str | None = None

    def failure(self, failure: Exception, prompt_index: int | None) -> InferenceError:
        row = prompt_name(prompt_index)
        if isinstance(failure, openai.APIStatusError):
            return self._refusal(failure, row, prompt_index)
        cause = failure.__cause__ or failure
        if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
            return EngineDeadError(
                f"No server answers at {self.base_url} ({error_text(cause)}); start it, or correct "
                "base_url. The next call tries again."
            )
        if isinstance(cause, httpx.TimeoutException):
            what = "sent nothing for the seconds of hang_timeout"
        elif isinstance(cause, httpx.TransportError):
            what = f"closed the connection ({error_text(cause)})"
        elif isinstance(failure, openai.APIError):
            what = f"ended the answer with an error: {self._words(failure)}"
        else:
            what = f"sent what is not JSON ({error_text(failure)})"
        return RequestFailure(f"{row}: {self.base_url} {what}.", index=prompt_index)

    def _refusal(
        self, failure: openai.APIStatusError, row: str, index: int | None
    ) -> InferenceError:
        status, words = failure.status_code, self._words(failure)
        said = f"{self.base_url} refused it ({status}): {words}."
        if status == 401:  # servers repeat parts of a key in their message
            named = f"refuses the key in the variable {self.key_env}"
            unnamed = "asks for a key; name the environment variable that holds it"
            return AccessRefused.of(
                "api_key_env", f"{self.base_url} {named if self.key_env else unnamed} (401)."
            )
        if status == 403:
            return AccessRefused.of(
                "api_key_env", f"the key in {self.key_env} does not permit this: {said}"
            )
        if status in BUSY or status >= 500:
            return RequestFailure(f"{row}: {said}", index=index)
        if status in (404, 405):
            return ConfigError(f"base_url or model_path: {said}")
        key = failure.param if isinstance(failure.param, str) else ""
        about_prompt = key.partition(".")[0].partition("[")[0] in ("", *PROMPT_KEYS)
        if about_prompt or failure.code == "context_length_exceeded":
            return PromptError(f"{row}: {said}", index=index)
        return ConfigError.of(key, said)

    def _words(self, failure: openai.APIError) -> str:
        """What the server says, without the key."""
        body = failure.body
        if isinstance(body, list) and body:  # Google's
            body = body[0]
        if isinstance(body, Mapping) and isinstance(body.get("error"), Mapping):
            body = body["error"]
        given = body.get("message") or body.get("detail") if isinstance(body, Mapping) else body
        said = given if isinstance(given, str) else json.dumps(given, default=str)
        said = failure.message if given is None else said
        said = said.replace(self.key, "(the key)") if self.key else said
        return strip_punctuation(said[:MAX_CHARACTERS])
