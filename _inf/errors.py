"""The exceptions of this library, all under `InferenceError`.

Every message says what was wrong, where (prompt index, key path, file) and what to do.
`inf` re-exports them; the library raises no other exceptions on purpose.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN_CHARACTERS = 80


class InferenceError(Exception):
    """The base class of all exceptions that this library raises."""


class EngineRefusal(InferenceError):
    """The engine takes no requests now: it is asleep, or its weights are half updated."""


class RequestFailure(InferenceError):
    """The engine gave one request up; others are not concerned."""


class ConfigError(InferenceError, ValueError):
    """A config key or a parameter of a call that cannot be used; the message begins with its
    path."""


class PromptError(InferenceError, ValueError):
    """A prompt that cannot be used; the message begins with its index in the batch."""


class PromptTooLongError(PromptError):
    """A prompt that exceeds a limit, alone or with the tokens of its answer."""


class ToolError(InferenceError):
    """A tool definition that cannot be used."""


class EngineDeadError(InferenceError, RuntimeError):
    """The engine is gone: which process died, its exit code, the end of its log."""


class GenerationTimeout(InferenceError, TimeoutError):
    """A call ran longer than its `timeout`; its requests were aborted in the engine."""


def shown(value: object) -> str:
    """Return a caller's value as short text for a message; never raises."""
    try:
        text = repr(value)
    except Exception:  # an int of over 4300 digits, or the caller's own __repr__
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def strip_punctuation(text: object) -> str:
    """Return text of another library without its final punctuation, for use inside a sentence."""
    return str(text).strip().rstrip(".!?:;, ")


def error_text(failure: BaseException) -> str:
    """Return an exception as "Type: message", without final punctuation."""
    return f"{type(failure).__name__}: {strip_punctuation(failure)}".removesuffix(": ")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the nearest known word, or nothing."""
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {match[0]!r}?" if match else ""
