"""The routes of the server. If a connection closes, its request and the request's rows in the
engine are cancelled. No part of a request is logged."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import BaseRoute

from _inf import __version__
from _inf.apps.openai_requests import RequestBody
from _inf.apps.serve.access import LOOPBACK_NAMES, guard, is_loopback
from _inf.apps.serve.adapter_routes import LoadBody, UnloadBody, load_adapter, unload_adapter
from _inf.apps.serve.bodies import BodyT
from _inf.apps.serve.calls import served_call
from _inf.apps.serve.connections import (
    EventStream,
    merged,
    read_bytes,
    read_request,
    while_connected,
)
from _inf.apps.serve.error_responses import HEADERS, RequestError, by_field, error_of
from _inf.apps.serve.item_responses import ItemsResponses
from _inf.apps.serve.keeper import EngineKeeper
from _inf.apps.serve.message_bodies import CountBody
from _inf.apps.serve.message_responses import MessagesResponses
from _inf.apps.serve.open_sessions import Sessions
from _inf.apps.serve.pause_routes import add_pause_routes
from _inf.apps.serve.prometheus import Metrics, WatchRequests
from _inf.apps.serve.responses import ChatResponses, CompletionResponses, Responses
from _inf.apps.serve.session_routes import SESSION, add_session_routes
from _inf.apps.serve.token_responses import SglangResponses, TokensResponses
from _inf.apps.serve.tokenizer_routes import (
    DetokenizeBody,
    TokenizeBody,
    counted,
    detokenized,
    tokenized,
    tokenizer_info,
)
from _inf.types import JSON

if TYPE_CHECKING:
    from _inf.apps.rollouts.traces import TraceFile
    from inf import InferenceEngine

NOT_FOUND = 404
ANSWERS: Mapping[str, type[Responses[Any]]] = {
    "/v1/chat/completions": ChatResponses,
    "/v1/completions": CompletionResponses,
    "/v1/messages": MessagesResponses,
    "/v1/responses": ItemsResponses,
    "/inference/v1/generate": TokensResponses,
    "/generate": SglangResponses,
}
# What is said of the tokenizer and its counts: the body, and what makes the answer.
TOLD: Mapping[str, tuple[type[RequestBody], Callable[..., JSON]]] = {
    "/v1/messages/count_tokens": (CountBody, counted),
    "/tokenize": (TokenizeBody, tokenized),
    "/detokenize": (DetokenizeBody, detokenized),
}


class Service:
    """Answers requests with one engine. `create_app` names the route of each method.

    adapter_folder: requests may load adapters from below it; None: they may load none.
    traces: the file to which the traces of sessions are written, too.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        adapter_folder: Path | None = None,
        traces: TraceFile | None = None,
    ) -> None:
        self.engine = engine
        self.adapter_folder = adapter_folder
        self.keeper = EngineKeeper(engine)
        self.metrics = Metrics(engine)
        self.sessions = Sessions(file=traces)
        # Between a look at the adapters and a load no other one is loaded by a request.
        self._changing = asyncio.Lock()
        self.model = engine.config.model_name
        limits = engine.model.limits
        self._model_card = {
            "id": self.model,
            "created": int(time.time()),
            "object": "model",
            "owned_by": "inf",
            "root": self.model,  # vLLM's, as the next two
            "parent": None,
            "max_model_len": limits.total,
            # Ours: the limits of a first prompt and of an answer without `max_tokens`.
            "prompt_length": limits.prompt,
            "response_length": engine.config.rollout.response_length,
        }

    # ─── /v1 ───

    async def models(self) -> JSON:
        adapters = await asyncio.to_thread(lambda: self.engine.adapters)
        models = [self._model_card, *map(self._adapter_card, adapters)]
        return {"object": "list", "data": models}

    async def one_model(self, name: str) -> JSON:
        adapter = await self._adapter(name)
        return self._model_card if adapter is None else self._adapter_card(adapter)

    def _adapter_card(self, name: str) -> JSON:
        return {**self._model_card, "id": name, "parent": self.model}

    async def _adapter(self, name: str | None) -> str | None:
        """The adapter that a request names as its model, perhaps as MODEL:ADAPTER (SGLang's form);
        None: the model itself."""
        if name is None or name in (self.model, f"{self.model}:"):
            return None
        name = name.removeprefix(f"{self.model}:")
        adapters = await asyncio.to_thread(lambda: self.engine.adapters)
        if name not in adapters:
            also = f", and its adapters {', '.join(adapters)}" if adapters else ""
            message = f"model: this server has only {self.model!r}{also}."
            raise RequestError(404, message, key="model", code="model_not_found")
        return name

    async def change_adapters(
        self, form: type[BodyT], change: Callable[..., str], request: Request
    ) -> Response:
        body = await read_request(form, request)
        async with self._changing:
            return Response(await asyncio.to_thread(change, self.engine, body))

    async def answer(self, kind: type[Responses[Any]], request: Request) -> Response:
        template = str(self.engine.tokenizer.chat_template)
        body = await asyncio.to_thread(kind.read, await read_bytes(request), template)
        adapter = await self._adapter(body.model)
        self.keeper.check()
        name = request.path_params.get("session")
        session = None if name is None else self.sessions.of_request(name)
        with by_field(body.fields):
            call = await asyncio.to_thread(served_call, self.engine, body, adapter, session)
            responses = kind(call, body, adapter or self.model)
            if body.stream:
                events = self._events(responses, request.url.path)
                # The first one is awaited here, so that a failure before it has its own status.
                first = await while_connected(request, anext(events))
                return EventStream(first, events, responses.headers, responses.ping)
            output = await while_connected(request, call.answer())
        self.keeper.answered()
        text = await asyncio.to_thread(responses.whole, list(output))
        call.record(responses.choices)
        return Response(text, headers=dict(responses.headers), media_type="application/json")

    async def _events(self, responses: Responses[Any], path: str) -> AsyncGenerator[str, None]:
        """The text of a stream's events; those before the first chunk come with that chunk's."""
        begun = False
        try:
            streams = await asyncio.to_thread(responses.call.streams)
            async with contextlib.aclosing(merged(streams)) as chunks:
                async for row, chunk in chunks:
                    events = [] if begun else responses.first_events()
                    events += responses.events(choice := responses.choices[row], chunk)
                    begun = True
                    if chunk.metadata is not None:
                        self.keeper.answered()
                        # Many clients read no further than its finish reason.
                        responses.call.record([choice])
                    if events:
                        yield "".join(events)
        except Exception as failure:
            if not begun:
                raise
            yield responses.failed(error_of(failure, path)[1])
            return
        yield "".join(responses.last_events())

    # ─── The tokenizer ───

    async def tell(self, form: type[Any], told: Callable[..., JSON], request: Request) -> Response:
        body = await read_request(form, request)
        await self._adapter(body.model)
        return JSONResponse(await asyncio.to_thread(told, self.engine, body))

    async def tokenizer_info(self) -> JSON:
        return tokenizer_info(self.engine)

    # ─── The server's state ───

    async def reached(self) -> Response:
        """Claude Code asks first whether a server is there."""
        return Response()

    async def health(self) -> Response:
        status = self.keeper.status
        code = 200 if status == "ok" else 503  # whether requests are answered now
        state = {"status": status, "restarts": self.keeper.restarts}
        return JSONResponse(state, code, HEADERS.get(code))

    async def version(self) -> dict[str, str]:
        return {"version": __version__}

    async def totals(self) -> Response:
        text = generate_latest(self.metrics.registry)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def create_app(service: Service, host: str, api_key: str | None) -> FastAPI:
    """Build the application. Without an `api_key` it answers only requests to this machine's own
    names, and none that a web page of another site sends."""
    own_names = [*LOOPBACK_NAMES, f"[{host}]" if ":" in host else host]
    router = APIRouter(dependencies=[Depends(guard(api_key, own_names))])
    get, post = router.add_api_route, partial(router.add_api_route, methods=["POST"])
    for prefix in ("", SESSION):
        for path, kind in ANSWERS.items():
            post(prefix + path, partial(service.answer, kind))
        for path, asked in TOLD.items():
            post(prefix + path, partial(service.tell, *asked))
        for path in ("/v1/models", "/v1/models/"):
            get(prefix + path, service.models)
        get(f"{prefix}/v1/models/{{name:path}}", service.one_model)
        get(f"{prefix}/tokenizer_info", service.tokenizer_info)
    if (folder := service.adapter_folder) is not None:
        load = partial(service.change_adapters, LoadBody, partial(load_adapter, folder))
        post("/v1/load_lora_adapter", load)
        unload = partial(service.change_adapters, UnloadBody, unload_adapter)
        post("/v1/unload_lora_adapter", unload)
    add_session_routes(router, service.sessions, service.engine.model.limits.vocabulary)
    get("/metrics", service.totals)
    get("/version", service.version)
    if is_loopback(host):
        add_pause_routes(router, service.engine)
    for_all = APIRouter()
    for_all.add_api_route("/health", service.health, methods=["GET", "HEAD"])
    for path in ("/", SESSION):
        for_all.add_api_route(path, service.reached, methods=["HEAD"])
    refuse = partial(_refuse_route, _named([*router.routes, *for_all.routes]))
    app = FastAPI(openapi_url=None, exception_handlers={HTTPException: refuse})
    app.include_router(router)
    app.include_router(for_all)
    if api_key is None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=own_names)
    app.add_middleware(WatchRequests, metrics=service.metrics)
    return app


async def _refuse_route(routes: str, request: Request, failure: HTTPException) -> Response:
    reason = f"{request.method} {request.url.path}: {failure.detail}."
    if failure.status_code == NOT_FOUND:
        reason += f" The routes are {routes}."
    raise RequestError(failure.status_code, reason, headers=failure.headers)


def _named(routes: Sequence[BaseRoute]) -> str:
    """The routes in a sentence; those that sessions have too are named once."""
    api = [route for route in routes if isinstance(route, APIRoute)]
    of_sessions = {f"{SESSION}{route.path}" for route in api}
    return ", ".join(
        f"{'|'.join(sorted(route.methods or ()))} {route.path}"
        for route in api
        if route.path not in of_sessions and not route.path.endswith("/")
    )
