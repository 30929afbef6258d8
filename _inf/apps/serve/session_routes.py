"""Opens, reads, rewards and deletes sessions over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic_core import to_json

from _inf.apps.openai_requests import RequestBody
from _inf.apps.serve.connections import read_request
from _inf.apps.serve.session_settings import SessionBody
from _inf.types import JSON

if TYPE_CHECKING:
    from _inf.apps.rollouts.traces import Trace
    from _inf.apps.serve.open_sessions import Sessions

SESSION = "/sessions/{session}"


class RewardBody(RequestBody):
    reward: float
    trace: str | None = None  # its id; by default the reward is of all


def add_session_routes(router: APIRouter, sessions: Sessions, vocabulary: int) -> None:
    async def opened(request: Request) -> JSON:
        body = await read_request(SessionBody, request)
        sessions.of_request(body.name, body.checked(vocabulary))
        return {"session": body.name, "path": f"/sessions/{body.name}/v1"}

    async def traces(session: str) -> Response:
        text = await asyncio.to_thread(_traces_json, sessions.get(session).traces())
        return Response(text, media_type="application/json")

    async def reward(request: Request, session: str) -> JSON:
        body = await read_request(RewardBody, request)
        sessions.get(session).set_reward(body.reward, body.trace)
        return dict(body)

    async def deleted(session: str) -> dict[str, bool]:
        sessions.delete(session)
        return {"deleted": True}

    router.add_api_route("/sessions", opened, methods=["POST"])
    router.add_api_route(f"{SESSION}/traces", traces)
    router.add_api_route(f"{SESSION}/reward", reward, methods=["POST"])
    router.add_api_route(SESSION, deleted, methods=["DELETE"])


def _traces_json(traces: Sequence[Trace]) -> bytes:
    """Each by a call of its own, because no other thread runs during one."""
    return b'{"traces":[%s]}' % b",".join(to_json(each, inf_nan_mode="null") for each in traces)
