"""From tokens as they come to text increments that nobody has to take back.

In: all token ids so far, growing. Out: `StreamChunk`s, whose texts joined are the decoded whole.
Knows the tokenizer's decoder, and nothing of engines or threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import regex

from _inf.errors import ConfigError, GenerationTimeout, PromptError
from _inf.output import shown_text
from _inf.sampling import Sampling
from _inf.stats import Stats
from _inf.talk import Talk
from _inf.upstream.host import TIMED_OUT, Ticket


@dataclasses.dataclass(frozen=True)
class StreamChunk:
    """What is new since the last chunk.

    text: complete user-perceived characters; the newest one waits until the next has begun, since a
        combining mark, a skin tone or more bytes may still belong to it, and so does what may be
        the beginning of a stop string.
    token_ids: the tokens generated since; their text may come with a later chunk.
    finish_reason: None, and in the last chunk `stop`, `length` or `tool_calls`.
    """

    text: str
    token_ids: list[int]
    finish_reason: str | None


def check_streamable(prompts: int, sampling: Sampling, talk: Talk) -> None:
    """`stream` takes one prompt and gives one answer."""
    if prompts != 1:
        raise PromptError(f"prompt 0: stream() takes one prompt, not {prompts}; use generate().")
    if sampling.n != 1:
        raise ConfigError(f"n: stream() gives one answer, not {sampling.n}; use generate().")
    if sampling.prompt_logprobs:
        raise ConfigError("prompt_logprobs: stream() does not give them; use generate().")
    talk.check_one_turn(sampling)


class Stream:
    """One request's chunks. The request begins when the first one is asked for."""

    def __init__(
        self,
        rollout: Any,
        ids: list[int],
        sampling: Sampling,
        talk: Talk,
        tokenizer: Any,
        stats: Stats,
    ) -> None:
        self._rollout = rollout
        self._talk = talk
        self._ids = ids
        self._params = sampling.requests[0]
        self._timeout = sampling.timeout
        self._stats = stats
        self._ticket = Ticket()
        self._text = TextStream(
            tokenizer,
            self._params["stop"],
            skip_special_tokens=sampling.skip_special_tokens,
        )

    def _begin(self, put: Callable[[Any], None]) -> concurrent.futures.Future[None]:
        """`put` gets rows, and None when there are no more, on the engine's thread."""
        self._ticket.expire_in(self._timeout)
        work: concurrent.futures.Future[None] = self._rollout.stream(
            self._ids, self._params, put, self._ticket
        )
        work.add_done_callback(lambda _: put(None))
        return work

    def _chunk(self, row: Any) -> StreamChunk:
        if row.finish_reason is not None:
            self._stats.add_rows([dataclasses.asdict(row)])
        chunk = self._text.feed(row)
        return dataclasses.replace(chunk, finish_reason=self._talk.finish_reason(row))

    def chunks(self) -> Iterator[StreamChunk]:
        """From any thread."""
        rows: queue.SimpleQueue[Any] = queue.SimpleQueue()
        with self._stats.call():
            work = self._begin(rows.put)
            try:
                while (row := self._next(rows)) is not None:
                    yield self._chunk(row)
                work.result()
            finally:
                self._ticket.cancel()

    def _next(self, rows: queue.SimpleQueue[Any]) -> Any:
        left = self._ticket.seconds_left()
        try:
            if left == 0:
                raise queue.Empty
            return rows.get(timeout=left)
        except queue.Empty:
            raise GenerationTimeout(TIMED_OUT) from None

    async def achunks(self) -> AsyncIterator[StreamChunk]:
        """Inside async code."""
        loop = asyncio.get_running_loop()
        rows: asyncio.Queue[Any] = asyncio.Queue()

        def put(row: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the caller's loop has ended: nobody listens
                loop.call_soon_threadsafe(rows.put_nowait, row)

        with self._stats.call():
            work = self._begin(put)
            try:
                while (row := await self._anext(rows)) is not None:
                    yield self._chunk(row)
                work.result()
            finally:
                self._ticket.cancel()

    async def _anext(self, rows: asyncio.Queue[Any]) -> Any:
        left = self._ticket.seconds_left()
        try:
            if left == 0:
                raise asyncio.TimeoutError
            return await asyncio.wait_for(rows.get(), left)
        except asyncio.TimeoutError:
            raise GenerationTimeout(TIMED_OUT) from None


class TextStream:
    """Turns one request's rows, each with all tokens so far, into `StreamChunk`s."""

    def __init__(
        self, tokenizer: Any, stops: Sequence[str], *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._skip_special_tokens = skip_special_tokens
        self._text = ""
        self._tokens = 0

    def feed(self, row: Any) -> StreamChunk:
        """The increment that `row` brings."""
        text = shown_text(row, self._tokenizer, skip_special_tokens=self._skip_special_tokens)
        if row.finish_reason is None:
            text = text[: self._settled(text)]
        text = text if len(text) > len(self._text) else self._text
        chunk = StreamChunk(
            text[len(self._text) :], row.token_ids[self._tokens :], row.finish_reason
        )
        self._text, self._tokens = text, len(row.token_ids)
        return chunk

    def _settled(self, text: str) -> int:
        """How many characters of `text` will stay as they are, whatever comes."""
        start = len(self._text)
        whole = text.rstrip("\N{REPLACEMENT CHARACTER}")
        characters = [match.start() for match in regex.finditer(r"\X", whole, pos=start)]
        held = max((_overlap(whole, stop) for stop in self._stops), default=0)
        return max(start, min(characters[-1] if characters else start, len(whole) - held))


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins."""
    return next((n for n in range(len(stop), 0, -1) if text.endswith(stop[:n])), 0)
