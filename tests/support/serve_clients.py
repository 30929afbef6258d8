"""The `openai` client against a server of a running engine, and what its streams join to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest
from openai import OpenAI

from _inf.apps.serve.server import InferenceServer

KEY = "none-is-needed"
WITHIN = 1e-3  # the same token's log prob depends a little on the batch that it is computed in


def client(server: InferenceServer, **more: Any) -> OpenAI:
    options = {"base_url": server.base_url, "api_key": KEY, "max_retries": 0, "timeout": 120}
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


def logprobs_of(part: Any) -> list[Any]:
    """The tokens' log probs of a part of a response; those of two parts are compared loosely."""
    content = (part.logprobs.content or []) if part.logprobs else []
    return [
        (
            each.token,
            each.bytes,
            pytest.approx(each.logprob, rel=0, abs=WITHIN),
            [top.token for top in each.top_logprobs],
        )
        for each in content
    ]


def joined_chat(chunks: Iterable[Any]) -> tuple[list[Joined], Any]:
    """The choices of a chat's stream, and its prompt's ids."""
    found: dict[int, Joined] = {}
    prompt_ids = None
    for chunk in chunks:
        prompt_ids = getattr(chunk, "prompt_token_ids", None) or prompt_ids
        for part in chunk.choices:
            one = found.setdefault(part.index, Joined())
            one.text += part.delta.content or ""
            one.ids += getattr(part, "token_ids", None) or []
            one.logprobs += logprobs_of(part)
            for call in part.delta.tool_calls or []:
                assert call.id.startswith("call_") and call.index == len(one.calls)
                one.calls.append((call.function.name, call.function.arguments))
            if part.finish_reason is not None:
                assert one.finish_reason is None
                one.finish_reason, one.stop_reason = part.finish_reason, part.stop_reason
    return [found[index] for index in sorted(found)], prompt_ids


def whole_chat(response: Any) -> tuple[list[Joined], Any]:
    """The same of a response that was not streamed."""
    choices = [
        Joined(
            text=choice.message.content or "",
            ids=getattr(choice, "token_ids", None) or [],
            logprobs=logprobs_of(choice),
            calls=[
                (call.function.name, call.function.arguments)
                for call in choice.message.tool_calls or []
            ],
            finish_reason=choice.finish_reason,
            stop_reason=choice.stop_reason,
        )
        for choice in response.choices
    ]
    return choices, getattr(response, "prompt_token_ids", None)
