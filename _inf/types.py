"""The frozen dataclasses that pass between folders; they use the standard library only.

A `Request` and a `RequestOutput` are the same for every backend.
"""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Tokenizer: TypeAlias = "PreTrainedTokenizerBase"  # Transformers'
Message: TypeAlias = "dict[str, Any]"  # OpenAI's: role, content and, for an assistant, tool_calls
Side: TypeAlias = Literal["left", "right"]

# Called on the engine's thread with the finished rows and the tokens generated so far.
Report: TypeAlias = "Callable[[int, int], None]"
# Called on the engine's thread with a streamed row as far as it has arrived.
Put: TypeAlias = "Callable[[RequestOutput], None]"
# Answers the rows of a call of conversations, where turns may be awaited.
Rows: TypeAlias = "Callable[[], Coroutine[Any, Any, list[RequestOutput]]]"
# A backend's `turn`, which answers one request of a conversation.
Turn: TypeAlias = "Callable[[Request], Awaitable[RequestOutput]]"
# Token ids, and the place of the first one that is scored.
Scored: TypeAlias = "tuple[list[int], int]"

TIMED_OUT = "timeout: the call took longer than its timeout; it was aborted."


@dataclass(frozen=True)
class Prompt:
    """One prompt as sent to the engine: `token_ids`, how many tokens `truncate_prompt` cut off, and
    the messages from which the ids were rendered, if any. For a backend without a tokenizer it has
    messages or text, and no ids."""

    token_ids: list[int]
    truncated_tokens: int = 0
    messages: list[Message] | None = None
    text: str | None = None


@dataclass(frozen=True)
class Limits:
    """The most tokens of a prompt, and of a prompt with its answer; and the vocabulary's size."""

    prompt: int
    total: int
    vocabulary: int
    truncate: Side | None = None


@dataclass(frozen=True)
class ModelInfo:
    """The served model. tokenizer: Transformers'; None if only a server has it, which then takes
    and gives text. eos_token_ids: from all files of the model; each one ends an answer. folder:
    where these files are."""

    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    limits: Limits
    folder: Path = Path()


@dataclass(frozen=True)
class Tool:
    """A tool. schema: OpenAI's `{"type": "function", "function": {...}}`, checked. function, verl:
    the Python function or verl `BaseTool` that runs it; both None: only the schema is known.
    timeout: seconds for a call; None: the config's `tool_timeout`."""

    name: str
    schema: dict[str, Any]
    function: Callable[..., Any] | None = None
    verl: Any = None
    timeout: float | None = None

    @property
    def executable(self) -> bool:
        """Whether this library runs its calls; otherwise they are returned to the caller."""
        return self.function is not None or self.verl is not None

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        parameters: dict[str, Any] = self.schema["function"]["parameters"]
        return parameters


@dataclass(frozen=True)
class ToolCall:
    """A call in parsed text: `text[start_pos:end_pos]` is `raw_text`. error: why the call cannot be
    read; `arguments` are then {} and `name` may be empty."""

    name: str
    arguments: dict[str, Any]
    raw_text: str
    start_pos: int
    end_pos: int
    error: str | None = None


@dataclass(frozen=True)
class TurnOptions:
    """The options of one prompt's conversation besides sampling, with verl's names, and TRL's
    `environment_factory`. agent_loop: as it was asked for; None runs none. tools_kwargs: its names
    are those of the row's tools; None: all tools of the call."""

    agent_loop: Any = None
    agent_kwargs: Mapping[str, Any] = field(default_factory=dict)
    environment_factory: Any = None
    environment_kwargs: Mapping[str, Any] = field(default_factory=dict)
    max_tokens_per_turn: int | None = None
    tools_kwargs: Mapping[str, Mapping[str, Any]] | None = None
    interaction_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def tool_kwargs(self, tool: str, method: str) -> Mapping[str, Any]:
        """The keywords for a method of a verl tool."""
        of_tool = (self.tools_kwargs or {}).get(tool, {})
        kwargs: Mapping[str, Any] | None = of_tool.get(f"{method}_kwargs")
        return kwargs or {}


@dataclass(frozen=True)
class Transcript:
    """A finished conversation, or the row of an agent loop.

    messages: None of an agent loop, which does not say them. mask, logprobs: one per id after the
    prompt; 1 and a log prob for an id that the model sampled, 0 and 0.0 for an id of a tool, a user
    or the template. answer_ids: those of the last turn.
    pending: calls returned to the caller. reward_scores: by tool, and `user_turn_rewards`. limit:
    the limit that ended the conversation or stopped calls from running; None if the model ended it.
    agent_loop: its name, if one ran; unsampled: where its mask is not that of the ids that were
    sampled; extra_fields: verl's, of its output.
    """

    messages: list[Message] | None = None
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    answer_ids: list[int] = field(default_factory=list)
    pending: list[ToolCall] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    num_turns: int = 0
    reward_scores: dict[str, Any] = field(default_factory=dict)
    limit: str | None = None
    error: str | None = None
    agent_loop: str | None = None
    unsampled: Sequence[int] = ()
    extra_fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SamplingParams:
    """How one row is sampled: complete and checked, under OpenAI's and vLLM's names.

    stop_token_ids: the caller's and, unless `ignore_eos`, the model's own EOS ids. seed: None for
    no seed. json_schema: as JSON text. logprobs: how many of the likeliest tokens' log probs are
    returned at each position. prompt_logprobs: whether the prompt's tokens are scored;
    top_prompt_logprobs: how many of the likeliest tokens' log probs are returned there.
    sampling_mask, return_routed_experts: whether the tokens that the filters left, and the experts
    of each token, are returned. num_beams: above 1 the row is found by beam search, and beam says
    which one it is, 0 being the best. adapter: the name of the LoRA adapter that answers.
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
    top_prompt_logprobs: int = 0
    sampling_mask: bool = False
    return_routed_experts: bool = False
    num_beams: int = 1
    beam: int = 0
    adapter: str | None = None

    @property
    def greedy(self) -> bool:
        """Whether nothing is drawn: the likeliest token is always taken, or the likeliest beam."""
        return self.temperature == 0


@dataclass(frozen=True)
class Request:
    """One row to answer: its prompt's token ids and its parameters.

    prompt_index, row: the numbers of the prompt and of the row in the call, for messages; None for
    a turn of a conversation, which knows its own. messages, text, tools: the prompt
    as it was given, and the schemas of its tools, for a backend without a tokenizer.
    """

    token_ids: list[int]
    params: SamplingParams
    prompt_index: int | None = field(default=None, repr=False, compare=False)
    row: int | None = field(default=None, repr=False, compare=False)
    messages: Sequence[Message] | None = None
    text: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class RequestOutput:
    """One row as answered by a backend.

    token_ids: the generated tokens, including the stop token; logprobs: one per token, NaN if a
    server defines it differently.
    finish_reason: `stop`, `length` or `tool_calls`; None while the row runs.
    prompt_logprobs: from the requested position on; None for the first token of all.
    top_prompt_logprobs: the likeliest ids at the same positions, if requested.
    top_logprobs: per generated token, the likeliest ids and the generated one, if requested.
    kept: per generated token, the ids that the filters left and their log probs, if requested.
    routed_experts: an int32 array, tokens but the last x layers x k, prompt included, if requested.
    transcript: of a conversation with more than one turn or with tools, and of an agent loop.
    prompt_token_ids: of a row that rendered its prompt itself.
    text, calls: from a backend without a tokenizer, in place of token ids.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float | None] = field(default_factory=list)
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    weight_version: int = 0
    transcript: Transcript | None = None
    top_prompt_logprobs: list[dict[int, float] | None] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] | None = None
    kept: list[dict[int, float]] | None = None
    routed_experts: Any = None
    text: str | None = None
    calls: Sequence[ToolCall] = ()
    prompt_token_ids: list[int] | None = None


@dataclass(frozen=True)
class Trace:
    """One trajectory of a session of `engine.serve()`: what the model read and sampled.

    token_ids: everything after the prompt; response_mask: 1 for a sampled id and 0 for one of the
    template, with the log prob 0.0 (NaN: the engine is a client of a server that gives none).
    messages: the conversation with its answers (none of a prompt of ids). finish_reasons,
    weight_versions: one per answer. reward: None until it is set.
    forked_from: the trace whose messages it shares, and how many; None if it shares none.
    rollout: one text for all traces of a session, which no other session has, also none of its
    name; None of a trace that no session made.
    """

    id: str
    prompt_token_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    response_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    finish_reasons: list[str] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)
    reward: float | None = None
    forked_from: tuple[str, int] | None = None
    rollout: str | None = None


@dataclass(frozen=True)
class SleepResult:
    """What `sleep` freed: bytes of the accelerator's memory, as counted by its driver."""

    freed_bytes: int
    note: str


class CancelToken:
    """Cancels one call, by hand or when its timeout is over."""

    def __init__(self) -> None:
        self._deadline: float | None = None
        self._work: concurrent.futures.Future[Any] | None = None
        self._cancelled = False

    def expire_in(self, timeout: float | None) -> None:
        """End the call `timeout` seconds from now; None: never."""
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def seconds_left(self) -> float | None:
        """Seconds until the timeout; None without a timeout."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def admit(self, work: concurrent.futures.Future[Any]) -> None:
        """Make `cancel` cancel `work`."""
        self._work = work
        if self._cancelled:
            work.cancel()

    def cancel(self) -> None:
        """End the call; may be called from any thread."""
        self._cancelled = True
        if self._work is not None:
            self._work.cancel()
