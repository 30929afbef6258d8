"""Turns exceptions into error bodies, in OpenAI's form or Anthropic's."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError  # of a call, when its engine is stopped

from _inf.apps.openai_requests import UnknownKeyError
from _inf.errors import (
    ConfigError,
    EngineDeadError,
    EngineRefusal,
    InferenceError,
    PromptError,
    PromptTooLongError,
    ToolError,
)
from _inf.types import JSON

logger = logging.getLogger("inf.serve")

ABANDONED = 499  # nginx's: the client closed the connection
HEADERS = {503: {"Retry-After": "5"}, 401: {"WWW-Authenticate": "Bearer"}}
NO_THREADS = "thread_unsupported_request"  # Anthropic's code
ANTHROPIC = {  # its names of what went wrong
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class RequestError(InferenceError):
    """A refusal with a status of its own. code: OpenAI's name for it. headers: of the response."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        key: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, key=key)
        self.status, self.code, self.headers = status, code, headers


@contextlib.contextmanager
def by_field(fields: Mapping[str, str]) -> Iterator[None]:
    """Say of an error about a keyword of `generate`, or the prompt, which field of the request gave
    it. fields: by the keyword, or `prompt`; the words before a comma name it."""
    try:
        yield
    except (ConfigError, PromptError) as failure:
        prompt = "prompt" if isinstance(failure, PromptError) else ""
        name = (failure.key or prompt).partition(".")[0].partition("[")[0]
        if name not in fields:
            raise
        message = str(failure)
        if failure.key is not None and message.startswith(name):
            message = fields[name] + message.removeprefix(name)
        key = fields[name].partition(",")[0]
        raise type(failure)(message, key=key, index=failure.index, row=failure.row) from None


def error_of(failure: Exception, path: str) -> tuple[int, JSON]:
    """Return the status and the body of a request's exception. One of a bug is logged: its type,
    and the lines of code that it came through, because its message may have a prompt."""
    status, param, code, message = 500, None, None, "The server failed."
    if isinstance(failure, InferenceError):
        message = failure.for_one_prompt()
        param = failure.key and failure.key.partition(".")[0].partition("[")[0]
    match failure:
        case RequestError():
            status, code = failure.status, failure.code
        case PromptError():
            too_long = isinstance(failure, PromptTooLongError)
            of_text = path.endswith("/v1/completions")
            status, param = 400, param or ("prompt" if of_text else "messages")
            code = "context_length_exceeded" if too_long else None
        case UnknownKeyError():
            status, param, code = 400, failure.key, "unknown_parameter"
        case ConfigError() | ToolError():
            status = 400
        case EngineDeadError() | CancelledError():  # its own message has the engine's log
            status, message = 503, "The engine died or was stopped; try again later."
        case EngineRefusal():
            status = 503
        case InferenceError():
            pass
        case _:
            where = "".join(traceback.format_tb(failure.__traceback__))
            logger.error("A request failed with %s:\n%s", type(failure).__name__, where)
    if "/v1/messages" in path:
        return status, _anthropic_error(status, message, code)
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _anthropic_error(status: int, message: str, code: str | None) -> JSON:
    if code == "context_length_exceeded":  # Claude Code looks for these words, and compacts
        message = f"prompt is too long: {message}"
    kind = ANTHROPIC.get(status, "api_error" if status >= 500 else "invalid_request_error")
    details = {"details": {"error_code": code}} if code == NO_THREADS else {}
    return {"type": "error", "error": {"type": kind, "message": message, **details}}


def headers_of(failure: Exception, status: int) -> Mapping[str, str] | None:
    headers = failure.headers if isinstance(failure, RequestError) else None
    return headers or HEADERS.get(status)
