"""What a session is opened with: its names, parameters that no request changes, and its limits."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from _inf.apps.serve.error_responses import by_field
from _inf.config.other_names import hint
from _inf.errors import ConfigError, shown
from _inf.request.keywords import PER_PROMPT, checked

# The parameters that a session may set for all of its requests.
PINNABLE = [name for name, keyword in PER_PROMPT.items() if keyword.kind is not None]
GREEDY = {"temperature": "do_sample", "do_sample": "temperature"}  # each may contradict the other


@dataclasses.dataclass(frozen=True)
class SessionSettings:
    """task: rollouts of one task are a group. rollout: sessions with the same one, such as an
    agent's and its sub-agents', are one rollout. sampling: parameters of `generate`, in place of a
    request's own. max_turns, max_tokens: answers, and sampled tokens, of the whole session."""

    task: str | None = None
    rollout: str | None = None
    sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    max_turns: int | None = None
    max_tokens: int | None = None

    def checked(self, vocabulary: int) -> SessionSettings:
        """Return the settings with plain values, or raise `ConfigError` with the key at fault."""
        for name in ("task", "rollout"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise ConfigError.of(name, f"{shown(value)} is no text, or an empty one")
        for name in ("max_turns", "max_tokens"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError.of(name, f"{shown(value)} is no whole number of at least 1")
        if not isinstance(self.sampling, Mapping):
            raise ConfigError.of("sampling", f"{shown(self.sampling)} is no mapping")
        for name in self.sampling:
            if name not in PINNABLE:
                instead = hint(str(name), PINNABLE)
                raise ConfigError.of(f"sampling.{name}", f"a session cannot set it{instead}")
        with by_field({name: f"sampling.{name}" for name in self.sampling}):
            sampling = {
                name: checked(name, value, vocabulary) for name, value in self.sampling.items()
            }
        return dataclasses.replace(self, sampling=sampling)

    @property
    def size(self) -> int:
        """In bytes of memory."""
        size, values = 0, [self.task, self.rollout, self.sampling]
        while values:
            size += sys.getsizeof(value := values.pop())
            if isinstance(value, Mapping):
                values += [*value, *value.values()]
            elif isinstance(value, list | tuple | set | frozenset):
                values += value
        return size

    def pinned(self, keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request's keywords, with the session's parameters in place of the same ones."""
        dropped = {GREEDY.get(name) for name in self.sampling}
        kept = {name: value for name, value in keywords.items() if name not in dropped}
        return kept | dict(self.sampling)
