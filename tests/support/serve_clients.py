"""Clients of a server of a running engine: plain HTTP, the `openai` package, and what its streams
join to."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import pytest
from openai import OpenAI

from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx

KEY = "none-is-needed"
WITHIN = 1e-3  # the same token's log prob depends a little on the batch that it is computed in
CHAT, COMPLETION, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES, TOKENS, SGLANGS = "/v1/responses", "/inference/v1/generate", "/generate"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


class Http:
    """The routes of a server, or of one of its sessions."""

    def __init__(self, server: InferenceServer, session: str = "") -> None:
        url = server.session_url(session) if session else server.base_url
        self.root = url.removesuffix("/v1")
        self.client = httpx.Client(base_url=self.root, timeout=120)

    def send(self, route: str, **body: Any) -> httpx.Response:
        return self.client.post(route, json=body)

    def post(self, route: str, status: int = 200, **body: Any) -> Any:
        response = self.send(route, **body)
        assert response.status_code == status, response.text
        return response.json()

    def get(self, route: str) -> Any:
        return self.client.get(route).json()

    def events(self, route: str, **body: Any) -> list[Any]:
        """The events of a stream, without its end."""
        lines = self.send(route, stream=True, **body).text.split("\n")
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        return [json.loads(each) for each in data if each != "[DONE]"]

    def delete(self) -> None:
        """Delete the session."""
        self.client.delete(self.root).raise_for_status()


def client(server: InferenceServer, session: str = "", **more: Any) -> OpenAI:
    url = server.session_url(session) if session else server.base_url
    options = {"base_url": url, "api_key": KEY, "max_retries": 0, "timeout": 120}
    return OpenAI(**options | more)


@dataclasses.dataclass
class Joined:
    """One choice of a stream, or of a response."""

    text: str = ""
    ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[Any] = dataclasses.field(default_factory=list)
    calls: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: Any = None

    def add(self, part: Any, message: Any) -> None:
        self.text += message.content or ""
        self.ids += getattr(part, "token_ids", None) or []
        for each in (part.logprobs and part.logprobs.content) or []:
            near = pytest.approx(each.logprob, rel=0, abs=WITHIN)
            self.logprobs.append(
                (each.token, each.bytes, near, [t.token for t in each.top_logprobs])
            )
        for call in message.tool_calls or []:
            assert call.id.startswith("call_")
            self.calls.append((call.function.name, call.function.arguments))
        if part.finish_reason is not None:
            assert self.finish_reason is None
            self.finish_reason, self.stop_reason = part.finish_reason, part.stop_reason


def joined_chat(chunks: Iterable[Any]) -> tuple[list[Joined], Any]:
    """The choices of a chat's stream, and its prompt's ids."""
    found: dict[int, Joined] = {}
    prompt_ids = None
    for chunk in chunks:
        prompt_ids = getattr(chunk, "prompt_token_ids", None) or prompt_ids
        for part in chunk.choices:
            one = found.setdefault(part.index, Joined())
            for number, call in enumerate(part.delta.tool_calls or [], len(one.calls)):
                assert call.index == number
            one.add(part, part.delta)
    return [found[index] for index in sorted(found)], prompt_ids


def whole_chat(response: Any) -> tuple[list[Joined], Any]:
    """The same of a response that was not streamed."""
    choices = [Joined() for _ in response.choices]
    for one, choice in zip(choices, response.choices, strict=True):
        one.add(choice, choice.message)
    return choices, getattr(response, "prompt_token_ids", None)


def choices_of(answer: Any) -> list[Joined]:
    """The choices of a response, or of a stream."""
    return (whole_chat(answer) if hasattr(answer, "choices") else joined_chat(answer))[0]
