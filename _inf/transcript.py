"""A finished conversation, as its row carries it from the rollout to the output."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _inf.tool_calls import ToolCall


@dataclasses.dataclass(frozen=True)
class Transcript:
    """A finished conversation.

    mask, logprobs: one for each id after the prompt; 1 and a log prob where the model sampled it,
    0 and 0.0 where a tool, a user or the template said it. answer_ids: the last turn's.
    pending: calls that were left to the caller. limit: which limit ended it, or kept calls from
    being run; None where the model came to its own end.
    """

    messages: list[dict[str, Any]]
    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    answer_ids: list[int]
    pending: list[ToolCall]
    calls: list[dict[str, Any]]
    num_turns: int
    tool_rewards: dict[str, float | None]
    reward_scores: dict[str, Any]
    limit: str | None
    error: str | None
