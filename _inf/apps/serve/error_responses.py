"""Turns exceptions into OpenAI's error bodies."""

from __future__ import annotations

from concurrent.futures import CancelledError  # of a call, when its engine is stopped
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from _inf.errors import (
    ConfigError,
    EngineDeadError,
    EngineRefusal,
    InferenceError,
    PromptError,
    PromptTooLongError,
    ToolError,
)

HEADERS = {503: {"Retry-After": "5"}, 401: {"WWW-Authenticate": "Bearer"}}


class RequestError(InferenceError):
    """A refusal with a status of its own. code: OpenAI's name for it."""

    def __init__(
        self, status: int, message: str, *, key: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, key=key)
        self.status, self.code = status, code


def error_of(failure: Exception, prompt_field: str | None = None) -> tuple[int, dict[str, Any]]:
    """Return the status and the body of an exception. prompt_field: the field with the prompt."""
    status, param, code, message = 500, None, None, "The server failed."
    if isinstance(failure, InferenceError):
        message = failure.for_one_prompt()
        param = failure.key and failure.key.partition(".")[0].partition("[")[0]
    match failure:
        case RequestError():
            status, code = failure.status, failure.code
        case PromptError():
            too_long = isinstance(failure, PromptTooLongError)
            status, param = 400, prompt_field
            code = "context_length_exceeded" if too_long else None
        case ConfigError() | ToolError():
            status = 400
        case EngineDeadError() | CancelledError():  # its own message has the engine's log
            status, message = 503, "The engine died or was stopped; try again later."
        case EngineRefusal():
            status = 503
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return status, {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_response(failure: Exception, prompt_field: str | None = None) -> JSONResponse:
    """Return the response to a request that raised."""
    status, body = error_of(failure, prompt_field)
    return JSONResponse(body, status, HEADERS.get(status))


def add_handlers(app: FastAPI) -> None:
    """Answer exceptions of this library, and those of FastAPI's routing, on all routes."""

    async def refused(request: Request, failure: Exception) -> JSONResponse:
        if isinstance(failure, HTTPException):
            where = f"{request.method} {request.url.path}"
            failure = RequestError(failure.status_code, f"{where}: {failure.detail}")
        in_prompt = request.url.path.endswith("/v1/completions")
        return error_response(failure, "prompt" if in_prompt else "messages")

    for kind in (InferenceError, CancelledError, HTTPException):
        app.add_exception_handler(kind, refused)
