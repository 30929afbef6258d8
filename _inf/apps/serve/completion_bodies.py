"""The body of `/v1/completions`."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from _inf.apps.serve.bodies import Likeliest, ServedKeywords
from _inf.errors import ConfigError
from _inf.request.keywords import OF_CHATS
from _inf.types import JSON


class CompletionBody(ServedKeywords):
    """prompt: text or token ids, or several of them. echo: the text and the log probs begin with
    the prompt's."""

    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: Likeliest | None = None  # type: ignore[assignment]
    echo: bool = False

    @model_validator(mode="after")
    def _refuse_fields_of_chats(self) -> CompletionBody:
        fields = dict(self)
        for name in (*OF_CHATS, "tool_choice", "parallel_tool_calls", "reasoning_effort"):
            if fields.get(name) is not None:
                raise ConfigError.of(name, "only /v1/chat/completions has it")
        if self.echo and self.stream and self.logprobs is not None:
            raise ConfigError.of("echo", "a stream does not give log probs of the prompt")
        return self

    @property
    def likeliest(self) -> int | None:
        """How many other tokens to list with each sampled one; None: no log probs."""
        return self.listed(self.logprobs)

    @property
    def scored(self) -> int | None:
        asked = (self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((count for count in asked if count is not None), default=None)

    def keywords(self) -> JSON:
        asked = self.logprobs and not self.logprob_token_ids
        return super().keywords() | ({"logprobs": self.logprobs} if asked else {})

    def prompts(self) -> list[Any]:
        given: Any = self.prompt
        if isinstance(given, str) or isinstance(next(iter(given), 0), int):
            given = [given]
        return [{"text" if isinstance(each, str) else "prompt_token_ids": each} for each in given]
