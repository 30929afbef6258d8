"""Grammars that were compiled, and the matchers that their rows copy.

SGLang 0.5.9 keeps every grammar for ever and compiles one for each row that arrives before the
first is ready (`constrained/base_grammar_backend.py`): ten thousand schemas of a client took
gigabytes.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any
from weakref import WeakSet

from llguidance import LLMatcher

logger = logging.getLogger(__name__)
MAX_MATCHERS = 128  # kept, of all grammars; rows of one that is dropped continue with their copies
MAX_CHARACTERS = 4_000_000  # of their texts: a matcher takes up to fifty bytes for each
Key = tuple[str, str]


@dataclasses.dataclass(frozen=True)
class _Matcher:
    """A grammar at its start, as soon as it is compiled. users: the rows that run with a copy, and
    the futures of those that wait for one."""

    compiled: Future[Any]
    users: WeakSet[object] = dataclasses.field(default_factory=WeakSet)


class CompiledGrammars:
    """The matchers that were used last.

    The copies of one matcher share a lock (llguidance 0.7.30, `LLMatcher.deep_copy`): with one for
    all rows no two threads would compute masks at once. So a grammar has up to `most`, but only
    where rows use it at the same time: a matcher takes up to megabytes.

    compile: of a key, called in the executor; returns a matcher, or SGLang's object for an invalid
    grammar, which is `invalid`. row_of: makes a row of a copy and its matcher's number.
    """

    def __init__(
        self,
        executor: Executor,
        compile: Callable[[Key], object],
        row_of: Callable[[LLMatcher, int], object],
        invalid: object,
        most: int,
    ) -> None:
        self._executor, self._compile, self._most = executor, compile, most
        self._row_of, self._invalid = row_of, invalid
        self._matchers: OrderedDict[tuple[Key, int], _Matcher] = OrderedDict()

    def row(self, key: Key) -> tuple[object, bool]:
        """Return a row of the grammar and True, or a future of one and False. Each request has a
        future of its own, because SGLang cancels that of a request which is aborted."""
        place = min(((key, number) for number in range(self._most)), key=self._users)
        if (matcher := self._matchers.pop(place, None)) is None:
            matcher = _Matcher(self._executor.submit(self._compiled, key))
        self._matchers[place] = matcher
        self._leave_out_oldest()
        if matcher.compiled.done():
            return self._row(matcher, place[1]), True
        future: Future[object] = Future()
        matcher.users.add(future)

        def give(_: Future[object]) -> None:
            if future.set_running_or_notify_cancel():
                row = self._row(matcher, place[1])
                matcher.users.discard(future)  # the row is counted in its place
                future.set_result(row)

        matcher.compiled.add_done_callback(give)
        return future, False

    def refuse(self, key: Key) -> None:
        """Give no more rows of the grammar, which took too long."""
        refused = _Matcher(Future())
        refused.compiled.set_result(self._invalid)
        self._matchers |= {(key, number): refused for number in range(self._most)}

    def clear(self) -> None:
        self._matchers.clear()

    def _users(self, place: tuple[Key, int]) -> int:
        matcher = self._matchers.get(place)
        return len(matcher.users) if matcher else 0

    def _row(self, matcher: _Matcher, number: int) -> object:
        if (compiled := matcher.compiled.result()) is self._invalid:
            return compiled
        row = self._row_of(compiled.deep_copy(), number)
        matcher.users.add(row)
        return row

    def _leave_out_oldest(self) -> None:
        characters = sum(len(text) for (_, text), _ in self._matchers)
        while len(self._matchers) > 1 and (
            len(self._matchers) > MAX_MATCHERS or characters > MAX_CHARACTERS
        ):
            ((_, text), _), _ = self._matchers.popitem(last=False)
            characters -= len(text)

    def _compiled(self, key: Key) -> object:
        try:
            return self._compile(key)
        except Exception as failure:  # an exception of a future would end the scheduler
            logger.error("llguidance cannot compile a grammar: %r", failure)
            return self._invalid
