"""The frozen dataclasses that pass between folders, so that these need not import each other.

Uses the standard library only. Every backend takes a `Request` and returns a `RequestOutput`. What
arrays hold is read by their attributes (`as_list`, `python_value`), for which nothing is imported.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase
    from verl.tools.base_tool import BaseTool

    from _inf.parts.part import Part, Record
    from _inf.request.template import Template
    from _inf.turns import Transcript

T = TypeVar("T")
Tokenizer: TypeAlias = "PreTrainedTokenizerBase"  # Transformers'
JSON: TypeAlias = dict[str, Any]  # an object of JSON
Message: TypeAlias = "dict[str, Any]"  # OpenAI's: role, content and, for an assistant, tool_calls
Side: TypeAlias = Literal["left", "right"]

# Called on the engine's thread with the numbers of finished rows and of tokens generated so far.
Report: TypeAlias = "Callable[[int, int], None]"
# Called on the engine's thread with a streamed row as it has arrived so far.
Put: TypeAlias = "Callable[[RequestOutput], None]"
# Answers the rows of a call of conversations, on the loop on which turns may be awaited.
Rows: TypeAlias = "Callable[[], Coroutine[object, None, list[RequestOutput]]]"
# A backend's `turn`, which answers one request of a conversation.
Turn: TypeAlias = "Callable[[Request], Awaitable[RequestOutput]]"


def as_list(array: Any) -> Any:
    """Return an array's values; any other value, or a tensor on the meta device, unchanged."""
    try:
        return array.tolist()
    except Exception:
        return array


def as_sequence(value: object) -> Sequence[object] | None:
    """Return a sequence, array, column or tensor as a sequence; None for anything else."""
    if isinstance(value, str | bytes | bytearray | Mapping):
        return None
    values = as_list(value)
    return values if isinstance(values, Sequence) and not isinstance(values, str | bytes) else None


def python_value(value: object) -> Any:
    """Turn arrays and their numbers, as a parquet file's columns have them in any place, into
    Python's own."""
    value = as_list(value)
    if isinstance(value, Mapping):
        return {key: python_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [python_value(item) for item in value]
    return value


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """The texts of a message's content."""
    content = message["content"]
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content if part["type"] == "text"]


@dataclass(frozen=True)
class Prompt:
    """One prompt as sent to the engine. truncated_tokens: how many `truncate_prompt` cut off.
    messages: the ids were rendered from these, if any. For a backend without a tokenizer it has
    messages or text, and no ids. index: its number in the call. parts: what its content
    asks for."""

    token_ids: list[int]
    truncated_tokens: int = 0
    messages: list[Message] | None = None
    text: str | None = None
    index: int = 0
    parts: tuple[Part, ...] = ()
    continues: ClassVar[bool] = False  # whether it is a row to continue

    def rendered(self, template: Template | None, limits: Limits) -> Prompt:
        """It as token ids: a part's prompt may still be messages."""
        return self


@dataclass(frozen=True)
class Limits:
    """The most tokens of a prompt, and of a prompt with its answer; and the vocabulary's size."""

    prompt: int
    total: int
    vocabulary: int
    truncate: Side | None = None


@dataclass(frozen=True)
class ThoughtMarks:
    """The config's `reasoning_parser` as token ids. turn_ends: the tokens that end a message."""

    start: list[int]
    end: list[int]
    unopened: bool
    turn_ends: Sequence[int] = ()


@dataclass(frozen=True)
class ModelInfo:
    """The served model. tokenizer: Transformers'; None if the backend is a server that takes and
    gives text. eos_token_ids: from all of the model's files; each one ends an answer. folder: where
    these files are. dtype: of the weights, such as "bfloat16"; "" if they are not here.
    thought_marks: None if the config names none."""

    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    limits: Limits
    folder: Path = Path()
    dtype: str = ""
    thought_marks: ThoughtMarks | None = None


@dataclass(frozen=True)
class Tool:
    """A tool. schema: OpenAI's `{"type": "function", "function": {...}}`, checked. function, verl:
    the Python function or verl `BaseTool` that runs it; both None if only the schema is known.
    timeout: seconds for a call; None is the config's `tool_timeout`. of_server: True if an MCP
    server wrote the schema; special tokens in it are then broken, as in a tool's result."""

    name: str
    schema: dict[str, Any]
    function: Callable[..., object] | None = None
    verl: BaseTool | None = None
    timeout: float | None = None
    of_server: bool = False

    @property
    def executable(self) -> bool:
        """Whether this library runs its calls; otherwise the caller gets them."""
        return self.function is not None or self.verl is not None

    @property
    def parameters(self) -> dict[str, Any]:
        """The JSON schema of its arguments."""
        parameters: dict[str, Any] = self.schema["function"]["parameters"]
        return parameters


@dataclass(frozen=True)
class ToolCall:
    """A tool call in a model's text: `text[start_pos:end_pos]` is `raw_text`. error: why the call
    cannot be parsed; `arguments` is then {} and `name` may be empty."""

    name: str
    arguments: dict[str, Any]
    raw_text: str
    start_pos: int
    end_pos: int
    error: str | None = None


@dataclass(frozen=True)
class SamplingParams:
    """How one row is sampled: complete and checked, under OpenAI's and vLLM's names.

    stop_token_ids: the caller's and, unless `ignore_eos`, the model's EOS ids. parts: what the row
    asks for beyond this, as records of `_inf.parts`.
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
    seed: int | None = None
    parts: tuple[Part, ...] = ()

    @property
    def greedy(self) -> bool:
        """Whether nothing is random: the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def filtered(self) -> bool:
        """Whether top_k, top_p or min_p leaves only some tokens."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    def of(self, kind: type[T]) -> T | None:
        """What the row asks of a part; None: nothing."""
        return next((part for part in self.parts if isinstance(part, kind)), None)


@dataclass(frozen=True)
class Scored:
    """The token ids of a prompt and what follows it, and the position of the first one to score.
    parts: what the prompt's content asks for."""

    ids: list[int]
    start: int
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Request:
    """One row to answer: its prompt's token ids and its parameters.

    prompt_index, row: the numbers of the prompt and of the row in the call, for error messages;
    None for a turn of a conversation, which has its own. messages, text, tools: the caller's prompt
    and the schemas of its tools, for a backend without a tokenizer.
    """

    token_ids: list[int]
    params: SamplingParams
    prompt_index: int | None = field(default=None, repr=False, compare=False)
    row: int | None = field(default=None, repr=False, compare=False)
    messages: Sequence[Message] | None = None
    text: str | None = None
    tools: Sequence[Mapping[str, object]] = ()

    @property
    def known_ids(self) -> list[int]:
        """The ids before the first new token: the prompt's, and those of an answer that goes on."""
        ids = self.token_ids
        for part in self.params.parts:
            ids = part.known_ids(ids)
        return ids


@dataclass(frozen=True)
class RequestOutput:
    """One row as answered by a backend.

    token_ids: the generated tokens, including the stop token; logprobs: one per token, NaN if a
    server defines it differently.
    finish_reason: `stop`, `length`, `repetition`, `tool_calls` or `abort`; None while the row runs.
    error: why the row failed, or what else went wrong.
    weight_versions: the versions of the weights that computed it, in order, each with the index of
        the first token that it computed: in `token_ids`, or with a transcript in its `ids`.
    transcript: only for conversations with tools or several turns, and for agent loops.
    text: from a backend without a tokenizer, instead of token ids.
    parts: what parts left of it, as their records.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    weight_versions: list[tuple[int, int]] = field(default_factory=list)
    transcript: Transcript | None = None
    text: str | None = None
    error: str | None = None
    parts: tuple[Record, ...] = ()

    @property
    def about(self) -> dict[str, Any]:
        """What a row, and the last chunk of a stream, have of it unchanged."""
        return {
            "matched_stop": self.matched_stop,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "weight_versions": self.weight_versions,
        }

    def of(self, kind: type[T]) -> T | None:
        """The record that a part left."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    @property
    def unsampled(self) -> list[int]:
        """The places of tokens that were not sampled; each has the log prob 0.0."""
        return [place for part in self.parts for place in part.unsampled]

    @property
    def weight_version(self) -> int:
        """The version that computed its last token."""
        return self.weight_versions[-1][0] if self.weight_versions else 0


@dataclass(frozen=True)
class SleepResult:
    """The result of `sleep`: the bytes of accelerator memory it freed, as counted by the driver."""

    freed_bytes: int
    note: str
