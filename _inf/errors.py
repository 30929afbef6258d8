"""The exceptions of this library, so that a caller can catch them all as `InferenceError`.

Every message says what was wrong, where (prompt index, key path, file) and what to do.
`inf` re-exports them; the library raises no other exceptions on purpose.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

SHOWN_CHARACTERS = 80

Self = TypeVar("Self", bound="InferenceError")


class InferenceError(Exception):
    """The base class of all exceptions that this library raises.

    Its attributes say where the fault is; each is None if unknown or not applicable:
    key: the config key or the keyword of a call, as a dotted path (`rollout.dtype`,
        `stop_token_ids[1]`); the first one if there are several.
    index: the number of the prompt, also for a value in a list with one value per prompt.
    row: the number of the row in its call; the rows of one prompt are adjacent.
    """

    def __init__(
        self,
        message: str = "",
        *,
        key: str | None = None,
        index: int | None = None,
        row: int | None = None,
    ) -> None:
        super().__init__(message)
        self.key, self.index, self.row = key, index, row

    @classmethod
    def of(cls: type[Self], key: str, sentence: str) -> Self:
        """Return an exception about `key`, with a message that begins with the key."""
        return cls(f"{key}: {sentence}", key=key)

    def for_one_prompt(self) -> str:
        """Return the message without the prompt index, for callers with one prompt."""
        return str(self) if self.index != 0 else str(self).replace("prompt 0", "the prompt", 1)


class EngineRefusal(InferenceError):
    """The engine accepts no requests now: it is asleep, or its weights are half updated."""


class RequestFailure(InferenceError):
    """The engine aborted one request; others are unaffected. `row` says which one."""


class ConfigError(InferenceError, ValueError):
    """A config key or a parameter of a call that cannot be used. The message begins with `key`;
    `key` is None if a file, a machine or a command's option is at fault."""


class PromptError(InferenceError, ValueError):
    """A prompt that cannot be used; the message begins with its `index` in the batch."""


class PromptTooLongError(PromptError):
    """A prompt that exceeds a limit, alone or with the tokens of its answer."""


class ToolError(InferenceError):
    """A tool definition that cannot be used."""


class EngineDeadError(InferenceError, RuntimeError):
    """The engine is dead; the message names the process, its exit code and the end of its log."""


class GenerationTimeout(InferenceError, TimeoutError):
    """A call ran longer than its `timeout`; its requests were aborted in the engine."""


@contextlib.contextmanager
def at_fault(
    *, key: str | None = None, index: int | None = None, row: int | None = None
) -> Iterator[None]:
    """Fill in `key`, `index` and `row` of this library's exceptions raised inside, if unset."""
    try:
        yield
    except InferenceError as failure:
        failure.key = key if failure.key is None else failure.key
        failure.index = index if failure.index is None else failure.index
        failure.row = row if failure.row is None else failure.row
        raise


def shown(value: object) -> str:
    """Return a caller's value as short text for a message; never raises."""
    try:
        text = repr(value)
    except Exception:  # an int of over 4300 digits, or the caller's own __repr__
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def check_unicode(
    text: str, where: str, kind: type[Exception] = ConfigError, *, key: str | None = None
) -> str:
    """Return the text, or raise if it contains a lone surrogate, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        with at_fault(key=key):
            raise kind(f"{where} contains a lone surrogate, which is not valid Unicode.") from None
    return text


def strip_punctuation(text: object) -> str:
    """Return another library's text without final punctuation, for use inside a sentence."""
    return str(text).strip().rstrip(".!?:;, ")


def error_text(failure: BaseException) -> str:
    """Return an exception as "Type: message" without final punctuation; only its type if it has no
    message, or if making the message fails."""
    kind = type(failure).__name__
    try:
        return f"{kind}: {strip_punctuation(failure)}".removesuffix(": ")
    except Exception:  # its __str__ raises
        return kind


# What pydantic's types of faults mean, and its bounds.
_KINDS = {"float": "a number", "int": "an int", "bool": "a bool; use True or False"}
_KINDS |= {"string": "text", "dict": "a mapping", "model": "an object", "list": "a list"}
_BOUNDS = {"greater_than_equal": "at least", "greater_than": "above"}
_BOUNDS |= {"less_than_equal": "at most", "less_than": "below"}


def value_fault(detail: Mapping[str, Any]) -> str:
    """Word what pydantic found, an item of `ValidationError.errors()`, as a keyword's fault."""
    value, fault = shown(detail["input"]), str(detail["type"])
    if fault == "value_error":  # of a validator of ours
        return str(detail["ctx"]["error"])
    kind, _, how = fault.partition("_")
    if kind in _KINDS and how in ("type", "parsing", "from_float"):
        return f"{value} is not {_KINDS[kind]}"
    if fault == "finite_number":
        return f"{value} is not a finite number"
    if fault in _BOUNDS:
        [bound] = detail["ctx"].values()
        exact = int(bound) if bound == int(bound) else bound
        return f"{value} is out of range; it must be {_BOUNDS[fault]} {exact}"
    rule = strip_punctuation(detail["msg"]).split(" or instance of ")[0]
    if rule.startswith("Input should be "):
        return f"{rule.replace('Input should', 'must')}, not {value}"
    return f"{value}: {rule}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `"; did you mean 'x'?"` for the nearest known word, or the first that begins with
    `word`; "" if there is neither."""
    words = list(known)
    word = word[:SHOWN_CHARACTERS].strip("'")  # the quotes of `shown`
    match = difflib.get_close_matches(word, words, n=1, cutoff=0.75)
    match += [longer for longer in words if word and longer.startswith(word)]
    return f"; did you mean {match[0]!r}?" if match else ""
