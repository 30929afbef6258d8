"""The records of rows with turns: a conversation's options, its transcript, and the versions of the
weights of rows that go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from _inf.types import Message, ToolCall

if TYPE_CHECKING:
    from _inf.parts.part import Part


@dataclass(frozen=True)
class TurnOptions:
    """The options of one prompt's conversation except sampling, under the names of verl, and TRL's
    `environment_factory`. agent_loop: as the caller named it; None runs none. tools_kwargs: by the
    names of the row's tools; None gives it all tools of the call."""

    agent_loop: object = None
    agent_kwargs: Mapping[str, object] = field(default_factory=dict)
    environment_factory: Any = None
    environment_kwargs: Mapping[str, object] = field(default_factory=dict)
    max_tokens_per_turn: int | None = None
    tools_kwargs: Mapping[str, Mapping[str, Mapping[str, object]]] | None = None
    interaction_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def tool_kwargs(self, tool: str, method: str) -> Mapping[str, object]:
        """The keywords for a method (`create`, `execute` ...) of a verl tool."""
        of_tool = (self.tools_kwargs or {}).get(tool, {})
        return of_tool.get(f"{method}_kwargs") or {}


@dataclass(frozen=True)
class Transcript:
    """A finished conversation, or the row of an agent loop.

    messages: None after an agent loop, which does not report them. mask, logprobs: one per id after
    the prompt; 1 and a log prob for an id that the model sampled, 0 and 0.0 for an id of a tool, a
    user or the template. answers: where each answer stands in the ids, forced tokens included;
    after an agent loop only the last; none if a server gives only text. pending: calls that the
    caller must run. reward_scores: by tool, and `user_turn_rewards`. limit: the limit that ended
    the conversation or kept calls from running; None if the model ended it. agent_loop: its name,
    if one ran; unsampled: positions where its mask is wrong; extra_fields: as in its output.
    prompt_ids: those that its answers follow; it may have rendered its prompt itself.
    environment: that of a row which `pause` ended, as `environments.Kept`. parts: what all of its
    content asks of parts.
    """

    messages: list[Message] | None = None
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    answers: list[range] = field(default_factory=list)
    pending: list[ToolCall] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    num_turns: int = 0
    reward_scores: dict[str, Any] = field(default_factory=dict)
    limit: str | None = None
    agent_loop: str | None = None
    unsampled: Sequence[int] = ()
    extra_fields: Mapping[str, object] = field(default_factory=dict)
    environment: Any = None
    prompt_ids: list[int] = field(default_factory=list)
    parts: Sequence[Part] = ()

    @property
    def answer_ids(self) -> list[int]:
        """The ids of the last answer."""
        return self.ids[self.answers[-1].start : self.answers[-1].stop] if self.answers else []


def joined_versions(
    versions: Sequence[tuple[int, int]], more: Sequence[tuple[int, int]], begin: int
) -> list[tuple[int, int]]:
    """The `weight_versions` of a row, and `more` of its part that begins at the index `begin`."""
    joined = list(versions)
    for version, first in more:
        if not joined or joined[-1][0] != version:
            joined.append((version, begin + first))
    return joined
