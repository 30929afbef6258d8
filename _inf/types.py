"""The records that pass between folders: frozen, of the standard library only.

They know nothing of each other's makers: a request is the same for every backend, and so is its
output.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

Message: TypeAlias = "dict[str, Any]"  # OpenAI's: role, content and, of an assistant, tool_calls
Side: TypeAlias = Literal["left", "right"]

# Told the rows finished and the tokens generated so far, on the engine's thread.
Report: TypeAlias = "Callable[[int, int], None]"

TIMED_OUT = "timeout: the call took longer than its timeout; it was aborted."


@dataclass(frozen=True)
class Prompt:
    """One prompt as it is sent: `token_ids`, how many were cut off by `truncate_prompt`, and the
    messages they were rendered from, if any."""

    token_ids: list[int]
    truncated_tokens: int = 0
    messages: list[Message] | None = None


@dataclass(frozen=True)
class Limits:
    """Token counts: of a prompt, and of a prompt with its answer; and the vocabulary's size."""

    prompt: int
    total: int
    vocabulary: int
    truncate: Side | None = None

    def truncating(self, side: Side | None) -> Limits:
        """The limits of a call that asks to cut its prompts, or asks nothing."""
        return self if side is None else replace(self, truncate=side)


@dataclass(frozen=True)
class ModelInfo:
    """What is known of the model that answers. tokenizer: Transformers'. eos_token_ids: any of them
    ends an answer, whichever file of the model names it."""

    tokenizer: Any
    eos_token_ids: frozenset[int]
    limits: Limits


@dataclass(frozen=True)
class Tool:
    """schema: OpenAI's `{"type": "function", "function": {...}}`, checked. function, verl: what
    executes it, if anything does (`verl` is a verl `BaseTool`)."""

    name: str
    schema: dict[str, Any]
    function: Callable[..., Any] | None = None
    verl: Any = None

    @property
    def executable(self) -> bool:
        """Whether a call of it is run here; else it is left to the caller."""
        return self.function is not None or self.verl is not None

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        parameters: dict[str, Any] = self.schema["function"]["parameters"]
        return parameters


@dataclass(frozen=True)
class ToolCall:
    """`text[start_pos:end_pos]` of the parsed text is `raw_text`. error: why it cannot be read;
    `arguments` are then {} and `name` may be empty."""

    name: str
    arguments: dict[str, Any]
    raw_text: str
    start_pos: int
    end_pos: int
    error: str | None = None


@dataclass(frozen=True)
class TurnOptions:
    """What one prompt's conversation takes beside sampling parameters, under verl's names."""

    max_tokens_per_turn: int | None = None
    tools_kwargs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    interaction_kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Transcript:
    """A finished conversation.

    mask, logprobs: one for each id after the prompt; 1 and a log prob where the model sampled it,
    0 and 0.0 where a tool, a user or the template said it. answer_ids: the last turn's.
    pending: calls that were left to the caller. limit: which limit ended it, or kept calls from
    being run; None where the model came to its own end.
    """

    messages: list[Message]
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


@dataclass(frozen=True)
class SamplingParams:
    """How one row is sampled: complete and checked, under OpenAI's and vLLM's names.

    stop_token_ids: the caller's and, unless `ignore_eos`, the model's own EOS ids. seed: None where
    none was asked for. json_schema: as JSON text. logprobs: of how many of the likeliest tokens the
    log probs are told at each position (0: of none); prompt_logprobs: whether the prompt's tokens
    are scored.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    json_schema: str | None = None
    regex: str | None = None
    logprobs: int = 0
    prompt_logprobs: bool = False

    @property
    def greedy(self) -> bool:
        """Whether it takes the likeliest token always."""
        return self.temperature == 0


@dataclass(frozen=True)
class Request:
    """One row to be answered: its prompt's token ids and its parameters."""

    token_ids: list[int]
    params: SamplingParams


@dataclass(frozen=True)
class RequestOutput:
    """One row as a backend answered it.

    token_ids: what was generated, the stop token included; logprobs: one each.
    finish_reason: `stop`, `length` or `tool_calls`; None while it runs.
    prompt_logprobs: from the position on that was asked for; None for a token nothing precedes.
    likeliest_logprobs: at the same positions that of the likeliest token, where asked for.
    top_logprobs: at each generated token the likeliest ids and its own, where asked for.
    transcript: of a conversation of more than one turn, or with tools.
    """

    token_ids: list[int]
    logprobs: list[float]
    prompt_logprobs: list[float | None]
    finish_reason: str | None
    matched_stop: int | str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    weight_version: int
    transcript: Transcript | None = None
    likeliest_logprobs: list[float | None] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] | None = None


@dataclass(frozen=True)
class SleepResult:
    """What going to sleep gave back: bytes of the accelerator's memory, as its driver counts."""

    freed_bytes: int
    note: str


class CancelToken:
    """One call's right to run: it ends when its time is over, or when it is cancelled."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._work: concurrent.futures.Future[Any] | None = None
        self._cancelled = False

    def expire_in(self, timeout: float | None) -> None:
        """End the call `timeout` seconds from now; None: never."""
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def seconds_left(self) -> float | None:
        """Until the timeout; None without one."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def admit(self, work: concurrent.futures.Future[Any]) -> None:
        """From now on `cancel` cancels `work`."""
        self._work = work
        if self._cancelled:
            work.cancel()

    def cancel(self) -> None:
        """End the call; from any thread."""
        self._cancelled = True
        if self._work is not None:
            self._work.cancel()
