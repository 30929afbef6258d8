"""From tokens as they come to text increments that nobody has to take back.

In: all token ids so far, growing. Out: `StreamChunk`s. At any time the text of those that came is
what their token ids read as, and in the end they are the whole answer.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import dataclasses
import queue
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from _inf.errors import GenerationTimeout
from _inf.request.sampling import Sampling
from _inf.response.decode import decoded_text, shown_text
from _inf.response.stats import Stats
from _inf.types import TIMED_OUT, CancelToken, Request, RequestOutput

# One byte of a character, as SentencePiece and `tokenizers.decoders.ByteFallback` name its token.
BYTE = re.compile("<0x[0-9A-F]{2}>")
# A backend's `stream`.
Begin: TypeAlias = "Callable[[Request, Callable[[RequestOutput], None], CancelToken], Future[None]]"
UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a decoder writes for the bytes of half a character


@dataclasses.dataclass(frozen=True)
class StreamChunk:
    """What is new since the last chunk.

    text: what `token_ids` add to the text. What a later token can still change waits: half a
        character, and what may be the beginning of a stop string.
    token_ids: the tokens whose text this is; those whose text waits come with it, in a later chunk.
    finish_reason: None, and in the last chunk, which delivers all that waited, `stop`, `length` or
        `tool_calls`.
    """

    text: str
    token_ids: list[int]
    finish_reason: str | None


class Stream:
    """One request's chunks. The request begins when the first one is asked for."""

    def __init__(
        self,
        begin: Begin,
        request: Request,
        sampling: Sampling,
        finish_reason: Callable[[RequestOutput], str | None],
        tokenizer: Any,
        stats: Stats,
    ) -> None:
        self._begin_request = begin
        self._finish_reason = finish_reason
        self._request = request
        self._timeout = sampling.timeout
        self._stats = stats
        self._cancel = CancelToken()
        self._text = TextStream(
            tokenizer,
            request.params.stop,
            skip_special_tokens=sampling.skip_special_tokens,
        )

    def _begin(self, put: Callable[[RequestOutput | None], None]) -> Future[None]:
        """`put` gets rows, and None when there are no more, on the engine's thread."""
        self._cancel.expire_in(self._timeout)
        work = self._begin_request(self._request, put, self._cancel)
        work.add_done_callback(lambda _: put(None))
        return work

    def _chunk(self, row: RequestOutput) -> StreamChunk | None:
        chunk = self._text.feed(row)
        if chunk is None or row.finish_reason is None:
            return chunk
        self._stats.add_rows([row])
        return dataclasses.replace(chunk, finish_reason=self._finish_reason(row))

    def chunks(self) -> Iterator[StreamChunk]:
        """From any thread."""
        rows: queue.SimpleQueue[RequestOutput | None] = queue.SimpleQueue()
        with self._stats.call():
            work = self._begin(rows.put)
            try:
                while (row := self._next(rows)) is not None:
                    if (chunk := self._chunk(row)) is not None:
                        yield chunk
                work.result()
            finally:
                self._cancel.cancel()

    def _next(self, rows: queue.SimpleQueue[RequestOutput | None]) -> RequestOutput | None:
        left = self._cancel.seconds_left()
        try:
            if left == 0:
                raise queue.Empty
            return rows.get(timeout=left)
        except queue.Empty:
            raise GenerationTimeout(TIMED_OUT) from None

    async def achunks(self) -> AsyncIterator[StreamChunk]:
        """Inside async code."""
        loop = asyncio.get_running_loop()
        rows: asyncio.Queue[RequestOutput | None] = asyncio.Queue()

        def put(row: RequestOutput | None) -> None:
            with contextlib.suppress(RuntimeError):  # the caller's loop has ended: nobody listens
                loop.call_soon_threadsafe(rows.put_nowait, row)

        with self._stats.call():
            work = self._begin(put)
            try:
                while (row := await self._anext(rows)) is not None:
                    if (chunk := self._chunk(row)) is not None:
                        yield chunk
                work.result()
            finally:
                self._cancel.cancel()

    async def _anext(self, rows: asyncio.Queue[RequestOutput | None]) -> RequestOutput | None:
        left = self._cancel.seconds_left()
        try:
            if left == 0:
                raise asyncio.TimeoutError
            return await asyncio.wait_for(rows.get(), left)
        except asyncio.TimeoutError:
            raise GenerationTimeout(TIMED_OUT) from None


class TextStream:
    """Turns one request's rows, each with all tokens so far, into `StreamChunk`s.

    The cost of a chunk does not grow with the answer: decoding begins at the last chunk's tokens,
    which is enough to know how the next ones read (whether a space stands between them, say).
    """

    def __init__(
        self, tokenizer: Any, stops: Sequence[str], *, skip_special_tokens: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = stops
        self._skip_special_tokens = skip_special_tokens
        self._hidden = set(tokenizer.all_special_ids) if skip_special_tokens else set()
        self._start = 0  # the token at which decoding begins
        self._sent = 0  # tokens
        self._sent_text = ""  # of the tokens from `_start` to `_sent`
        self._length = 0  # characters sent

    def feed(self, row: RequestOutput) -> StreamChunk | None:
        """The increment that `row` brings; None while all that is new has to wait."""
        ids: list[int] = row.token_ids
        if row.finish_reason is not None:
            text = shown_text(row, self._tokenizer, skip_special_tokens=self._skip_special_tokens)
            return StreamChunk(text[self._length :], ids[self._sent :], row.finish_reason)
        end, text = self._settled(ids)
        if end == self._sent:
            return None
        chunk = StreamChunk(text[len(self._sent_text) :], ids[self._sent : end], None)
        self._sent_text = text
        if alone := self._decoded(ids[self._sent : end]):
            self._start, self._sent_text = self._sent, alone
        self._sent = end
        self._length += len(chunk.text)
        return chunk

    def _decoded(self, ids: Sequence[int]) -> str:
        return decoded_text(ids, self._tokenizer, skip_special_tokens=self._skip_special_tokens)

    def _settled(self, ids: Sequence[int]) -> tuple[int, str]:
        """How many tokens read the same whatever comes, and their text from `_start` on."""

        def text(end: int) -> str:
            return self._decoded(ids[self._start : end])

        last = self._bytes_begin(ids)
        whole = text(last)
        certain = whole.removesuffix(UNFINISHED)
        length = len(certain) - max((_overlap(certain, stop) for stop in self._stops), default=0)
        if not whole.startswith(self._sent_text):  # a decoder of no known kind: the end brings all
            return self._sent, self._sent_text
        ends = range(self._sent + 1, last + 1)
        end = self._sent + bisect.bisect_right(ends, length, key=lambda end: len(text(end)))
        while not whole.startswith(text(end)):  # it is inside a character that has come by now
            end -= 1
        return end, text(end)

    def _bytes_begin(self, ids: Sequence[int]) -> int:
        """Where the byte tokens begin with which `ids` ends: a run of them is decoded as one (Llama
        2), so that a later byte can turn all of it into U+FFFD, finished characters too."""
        begin = len(ids)
        for place in range(len(ids) - 1, self._sent - 1, -1):
            if BYTE.fullmatch(str(self._tokenizer.convert_ids_to_tokens(ids[place]))):
                begin = place
            elif ids[place] not in self._hidden:
                break
        return begin


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins, and does not end."""
    return next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)
