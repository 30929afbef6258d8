"""Pauses the engine over HTTP, in vLLM's form (0.32.0, `entrypoints/rl/online/api_router.py` and
`entrypoints/serve/dev/cache/api_router.py`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

from fastapi import APIRouter, Request

from _inf.apps.openai_requests import RequestBody, read

if TYPE_CHECKING:
    from inf import InferenceEngine


class PauseQuery(RequestBody):
    """The parameters of /pause. vLLM's default ends running rows."""

    mode: Literal["abort", "wait", "keep"] = "abort"
    clear_cache: Literal["true", "false"] = "true"


def add_pause_routes(router: APIRouter, engine: InferenceEngine) -> None:
    async def pause(request: Request) -> dict[str, str]:
        asked = read(PauseQuery, dict(request.query_params))
        await asyncio.to_thread(engine.pause, asked.mode)
        if asked.clear_cache == "true" and asked.mode != "keep":  # as vLLM
            await asyncio.to_thread(engine.reset_prefix_cache)
        return {"status": "paused"}

    async def resume(request: Request) -> dict[str, str]:
        read(RequestBody, dict(request.query_params))  # it has no parameters
        await asyncio.to_thread(engine.resume)
        return {"status": "resumed"}

    async def is_paused() -> dict[str, bool]:
        return {"is_paused": await asyncio.to_thread(lambda: engine.paused)}

    async def reset_prefix_cache(request: Request) -> dict[str, bool]:
        read(RequestBody, dict(request.query_params))
        await asyncio.to_thread(engine.reset_prefix_cache)
        return {"success": True}

    for method in (pause, resume, reset_prefix_cache):
        router.add_api_route(f"/{method.__name__}", method, methods=["POST"])
    router.add_api_route("/is_paused", is_paused)
