"""What a session is opened with: its names, parameters that no request changes, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from _inf.apps.openai_requests import RequestBody
from _inf.apps.serve.error_responses import by_field
from _inf.config.other_names import hint
from _inf.errors import ConfigError
from _inf.request.keywords import PER_PROMPT
from _inf.types import JSON

# The parameters that a session may set for all of its requests.
PINNABLE = [name for name, keyword in PER_PROMPT.items() if keyword.kind is not None]
GREEDY = {"temperature": "do_sample", "do_sample": "temperature"}  # each may contradict the other
BYTES_PER_CHARACTER = 8  # of settings in memory, at most

Name = Annotated[str, Field(min_length=1)]
Limit = Annotated[int, Field(ge=1)]


class SessionSettings(RequestBody):
    """task: rollouts of one task are a group. rollout: sessions with the same one, such as an
    agent's and its sub-agents', are one rollout. sampling: parameters of `generate`, in place of a
    request's own. max_turns, max_tokens: answers, and sampled tokens, of the whole session."""

    task: Name | None = None
    rollout: Name | None = None
    sampling: Mapping[str, object] = Field(default_factory=dict)
    max_turns: Limit | None = None
    max_tokens: Limit | None = None

    def checked(self, vocabulary: int) -> SessionSettings:
        """Return the settings with plain values, or raise `ConfigError` with the key at fault."""
        for name in self.sampling:
            if name not in PINNABLE:
                instead = hint(name, PINNABLE)
                raise ConfigError.of(f"sampling.{name}", f"a session cannot set it{instead}")
        with by_field({name: f"sampling.{name}" for name in self.sampling}):
            sampling = {
                name: PER_PROMPT[name].checked(name, value, vocabulary)
                for name, value in self.sampling.items()
            }
        return self.model_copy(update={"sampling": sampling})

    @property
    def size(self) -> int:
        """In bytes of memory, at most."""
        return BYTES_PER_CHARACTER * len(repr(self))

    def pinned(self, keywords: Mapping[str, object]) -> JSON:
        """Return a request's keywords, with the session's parameters in place of the same ones."""
        dropped = {GREEDY.get(name) for name in self.sampling}
        kept = {name: value for name, value in keywords.items() if name not in dropped}
        return kept | dict(self.sampling)


class SessionBody(SessionSettings):
    """The request for a new session."""

    name: str
