"""Turns exceptions into OpenAI's error bodies.

In: an exception of this library, or of FastAPI's routing. Out: a response with a status and
`{"error": {"message", "type", "param", "code"}}`. Of any other exception only the place is logged,
because its message may have a prompt.
"""

from __future__ import annotations

import logging
import traceback
from concurrent.futures import CancelledError  # of a call, when its engine is stopped
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from _inf.apps.openai_format import BadRequest
from _inf.errors import (
    ConfigError,
    EngineDeadError,
    EngineRefusal,
    InferenceError,
    PromptError,
    PromptTooLongError,
    ToolError,
)

logger = logging.getLogger("inf.serve")

RETRY_SECONDS = 5


class RequestError(InferenceError):
    """A refusal with a status of its own."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


def error_of(failure: Exception, prompt_field: str | None = None) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an exception. prompt_field: the field with the prompt."""
    status, param, code = 500, None, None
    message = str(failure).replace("prompt 0", "the prompt", 1)
    match failure:
        case RequestError():
            status, param, code = failure.status, failure.param, failure.code
        case BadRequest():
            status, param = 400, failure.key
        case PromptTooLongError():
            status, param, code = 400, prompt_field, "context_length_exceeded"
        case PromptError():
            status, param = 400, prompt_field
        case ConfigError() | ToolError():
            status, param = 400, _first_name(message)
        case EngineDeadError() | CancelledError():  # its own message has the engine's log
            status, message = 503, "The engine died or was stopped; try again later."
        case EngineRefusal():
            status = 503
        case InferenceError():
            pass
        case _:
            message = "The server failed."
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _first_name(message: str) -> str | None:
    """The keyword with which a message begins."""
    name = message.partition(":")[0].partition(".")[0].partition("[")[0]
    return name if name.isidentifier() else None


def _response(failure: Exception, prompt_field: str | None = None) -> JSONResponse:
    status, body = error_of(failure, prompt_field)
    headers = {503: {"Retry-After": str(RETRY_SECONDS)}, 401: {"WWW-Authenticate": "Bearer"}}
    return JSONResponse(body, status, headers.get(status))


def add_handlers(app: FastAPI) -> None:
    """Answer with OpenAI's error bodies on all routes."""

    async def refused(request: Request, failure: Exception) -> JSONResponse:
        field = "prompt" if request.url.path.endswith("/v1/completions") else "messages"
        return _response(failure, field)

    async def not_found(request: Request, failure: Exception) -> JSONResponse:
        assert isinstance(failure, HTTPException)
        where = f"{request.method} {request.url.path}"
        return _response(RequestError(failure.status_code, f"{where}: {failure.detail}"))

    for kind in (BadRequest, InferenceError, CancelledError):
        app.add_exception_handler(kind, refused)
    app.add_exception_handler(HTTPException, not_found)
    app.add_middleware(AnswerBugs)


def log_bug(failure: Exception) -> None:
    """Log an exception's type and the lines of code that it came through."""
    where = "".join(traceback.format_tb(failure.__traceback__))
    logger.error("A request failed with %s:\n%s", type(failure).__name__, where)


class AnswerBugs:
    """ASGI middleware: answers any other exception with a 500. As a handler of the application this
    would raise it again, and uvicorn would log its message (starlette 1.10, `errors.py`)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception as failure:
            log_bug(failure)
            if begun:  # the server closes the connection
                raise InferenceError("A response ended before its end.") from None
            await _response(failure)(scope, receive, send)
