"""Grammars that were compiled, each once, and the matchers that their rows copy.

SGLang 0.5.9 keeps every grammar for ever and compiles one for each row that arrives before the
first is ready (`constrained/base_grammar_backend.py`): ten thousand schemas of a client took
gigabytes.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any
from weakref import WeakKeyDictionary

from llguidance import LLMatcher

logger = logging.getLogger(__name__)
MAX_GRAMMARS = 64  # kept; rows of one that is no longer kept continue with their copies
MAX_CHARACTERS = 4_000_000  # of their texts: a matcher takes up to fifty bytes for each
Key = tuple[str, str]


class CompiledGrammar:
    """A grammar at its start. `compile` makes one more matcher; `most` are kept.

    The copies of one matcher share a lock (llguidance 0.7.30, `LLMatcher.deep_copy`): with one for
    all rows no two threads would compute masks at once. So there are several, but only where rows
    use the grammar at the same time: a matcher takes up to megabytes.
    """

    def __init__(self, compile: Callable[[], LLMatcher], most: int) -> None:
        self._compile, self._most = compile, most
        self._matchers = [compile()]
        self._numbers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of rows that run
        self._adding, self._taking = threading.Lock(), threading.Lock()

    def take(self, row: object) -> tuple[int, LLMatcher]:
        """Copy the matcher that the fewest running rows use; return its number too."""
        with self._taking:
            used = Counter(self._numbers.values())
            number = min(range(len(self._matchers)), key=lambda matcher: used[matcher])
            self._numbers[row] = number
        return number, self._matchers[number].deep_copy()

    @property
    def lacks(self) -> bool:
        """Whether more rows run than there are matchers."""
        return len(self._matchers) < min(self._most, len(self._numbers))

    def add_matchers(self, rows: int) -> None:
        """Compile as many as so many rows need; it takes a millisecond each, or seconds."""
        with self._adding:
            while len(self._matchers) < min(self._most, rows):
                self._matchers.append(self._compile())

    @property
    def running(self) -> int:
        return len(self._numbers)


class _Entry:
    """A grammar that is compiled, or what waits for it. value: also SGLang's object for an invalid
    grammar."""

    def __init__(self) -> None:
        self.value: Any = None
        self.waiting: list[Future[Any]] = []


class CompiledGrammars:
    """The grammars that were used last. compile: of a key, called in the executor; row_of: makes
    what a request gets of what `compile` returned; invalid: what it gets after a failure."""

    def __init__(
        self,
        executor: Executor,
        compile: Callable[[Key], Any],
        row_of: Callable[[CompiledGrammar], Any],
        invalid: Any,
    ) -> None:
        self._executor, self._compile = executor, compile
        self._row_of, self._invalid = row_of, invalid
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def row(self, key: Key) -> tuple[Any, bool]:
        """Return a row of the grammar and True, or a future of one and False. Each request has a
        future of its own, because SGLang cancels that of a request which is aborted."""
        future: Future[Any] = Future()
        with self._lock:
            entry = self._entries.pop(key, None)
            is_new = entry is None
            self._entries[key] = entry = entry or _Entry()
            self._leave_out_oldest()
            value = entry.value
            if value is None:
                entry.waiting.append(future)
        if is_new:
            self._executor.submit(self._fill, key, entry)
        if value is None:
            return future, False
        if not isinstance(value, CompiledGrammar):
            return value, True
        row = self._row_of(value)
        if value.lacks:
            self._executor.submit(value.add_matchers, value.running)
        return row, True

    def refuse(self, key: Key) -> None:
        """Give no more rows of the grammar, which took too long."""
        with self._lock:
            self._entries[key] = entry = _Entry()
            entry.value = self._invalid

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()

    def _leave_out_oldest(self) -> None:
        characters = sum(len(text) for _, text in self._entries)
        while len(self._entries) > 1 and (
            len(self._entries) > MAX_GRAMMARS or characters > MAX_CHARACTERS
        ):
            (_, text), _ = self._entries.popitem(last=False)
            characters -= len(text)

    def _fill(self, key: Key, entry: _Entry) -> None:
        try:
            value = self._compile(key)
            if isinstance(value, CompiledGrammar):
                value.add_matchers(len(entry.waiting))
        except Exception as failure:  # an exception of a future would end the scheduler
            logger.error("llguidance cannot compile a grammar: %r", failure)
            value = self._invalid
        with self._lock:
            entry.value, waiting = value, entry.waiting
            entry.waiting = []
        for future in waiting:
            if future.set_running_or_notify_cancel():
                is_compiled = isinstance(value, CompiledGrammar)
                future.set_result(self._row_of(value) if is_compiled else value)
