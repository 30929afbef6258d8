"""Pauses the engine over HTTP, in vLLM's form (0.32.0, `entrypoints/rl/online/api_router.py` and
`entrypoints/serve/dev/cache/api_router.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from _inf.apps.serve.error_responses import RequestError
from _inf.errors import shown

if TYPE_CHECKING:
    from inf import InferenceEngine

# The parameters of /pause: their values, the default first. vLLM's default ends running rows.
PAUSE: Mapping[str, tuple[str, ...]] = {
    "mode": ("abort", "wait", "keep"),
    "clear_cache": ("true", "false"),
}


def add_pause_routes(router: APIRouter, engine: InferenceEngine) -> None:
    async def pause(request: Request) -> Response:
        asked = _asked(request, PAUSE)
        await asyncio.to_thread(engine.pause, asked["mode"])
        if asked["clear_cache"] == "true" and asked["mode"] != "keep":  # as vLLM
            await asyncio.to_thread(engine.reset_prefix_cache)
        return JSONResponse({"status": "paused"})

    async def resume(request: Request) -> Response:
        _asked(request)
        await asyncio.to_thread(engine.resume)
        return JSONResponse({"status": "resumed"})

    async def is_paused() -> Response:
        return JSONResponse({"is_paused": await asyncio.to_thread(lambda: engine.paused)})

    async def reset_prefix_cache(request: Request) -> Response:
        _asked(request)
        await asyncio.to_thread(engine.reset_prefix_cache)
        return JSONResponse({"success": True})

    for method in (pause, resume, reset_prefix_cache):
        router.add_api_route(f"/{method.__name__}", method, methods=["POST"])
    router.add_api_route("/is_paused", is_paused)


def _asked(request: Request, known: Mapping[str, tuple[str, ...]] = {}) -> dict[str, str]:
    """The parameters in the request's URL; those that are left out have their defaults."""
    given = request.query_params
    for name, value in given.items():
        if name not in known:
            reason = f"{name}: {request.url.path} has no such parameter."
            raise RequestError(400, reason, key=name, code="unknown_parameter")
        if value not in known[name]:
            reason = f"{name}: {shown(value)} is none of {', '.join(known[name])}."
            raise RequestError(400, reason, key=name)
    return {name: given.get(name, values[0]) for name, values in known.items()}
